"""Installs what one service needs into /opt/handmesh, in an image: the project's dependencies and its extras.

    python3 install.py EXTRA...         in an image's build
    python3 install.py --list EXTRA...  prints what it would install, in a work tree

From the wheels of `make wheels` where there are any, which needs no network; else from the package index. Standard
library only; the image's Python need not have pip when there are wheels.
"""

import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TARGET = Path("/opt/handmesh")
WHEELS = Path("/wheels")


def requirements(project: dict[str, Any], extras: Sequence[str]) -> list[str]:
    """Returns the project's dependencies and those of extras, with those of the extras that they name."""
    wanted = list(project["dependencies"])
    open_extras, seen = list(extras), set[str]()
    while open_extras:
        name = open_extras.pop()
        if name in seen:
            continue
        seen.add(name)
        for requirement in project["optional-dependencies"][name]:
            own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
            if own is None:
                wanted.append(requirement)
            else:
                open_extras += [each.strip() for each in own[1].split(",")]
    return wanted


def main() -> None:
    """Makes the environment, and leaves word in it of where the service's own code will be."""
    folder = Path("/build") if sys.argv[1] != "--list" else Path(__file__).resolve().parents[1]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    if sys.argv[1] == "--list":
        wanted = {each.replace(" ", "") for each in requirements(project, sys.argv[2:])}
        sys.stdout.write("\n".join(sorted(wanted)) + "\n")
        return
    venv.create(TARGET, with_pip=False, symlinks=True)
    wheels = sorted(WHEELS.glob("pip-*.whl"))
    pip = [str(wheels[-1] / "pip")] if wheels else ["-m", "pip"]
    source = ["--no-index", "--find-links", str(WHEELS)] if wheels else []
    install = ["--python", str(TARGET / "bin" / "python"), "install", "--no-cache-dir", "--disable-pip-version-check"]
    chosen = ["--constraint", str(folder / "constraints.txt"), *requirements(project, sys.argv[1:])]
    subprocess.run(
        [sys.executable, *pip, *install, *source, "--quiet", "--root-user-action=ignore", *chosen], check=True
    )
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (TARGET / "lib" / version / "site-packages" / "handmesh.pth").write_text(f"{TARGET / 'app'}\n")


if __name__ == "__main__":
    main()
