"""A file of settings says what the environment does not, and nothing that nobody understands."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from handmesh.launcher.ca import ensure_certificates
from services.kit import settings
from services.kit.settings import Mesh, SettingsError, address, existing, flag, read, setting, text, url, whole

PROGRAMS = ("session", "harness", "sandbox", "vault_proxy", "session.migrate", "session.janitor")
FILE = "HANDMESH_CONFIG_FILE"


@dataclass(frozen=True)
class Settings:
    where: str = setting("HANDMESH_WHERE", address, "here:1", "Where it is.")
    many: int = setting("HANDMESH_MANY", whole, 3, "How many.")
    loud: bool = setting("HANDMESH_LOUD", flag, False, "1 is loud.")
    names: str = setting("HANDMESH_NAMES", text, "", "Names, joined by commas.")
    store: str = setting("HANDMESH_STORE_URL", url, "x://y", "Where the store is.")
    key_file: Path | None = setting("HANDMESH_KEY_FILE", existing, None, "File of the key.")


def of(program: str) -> type:
    """Returns a program's settings class."""
    module = f"services.{program}" if "." in program else f"services.{program}.settings"
    return importlib.import_module(module).Settings  # type: ignore[no-any-return]


def filed(tmp_path: Path, content: str, program: str = "harness", **environment: str) -> Settings:
    """Reads the settings from such a file and environment."""
    (tmp_path / "mesh.toml").write_text(content)
    return read(Settings, {FILE: str(tmp_path / "mesh.toml"), **environment}, program)


def test_the_environment_counts_before_the_table_and_the_table_before_the_top(tmp_path: Path) -> None:
    """Numbers, true, and lists are what the variable would have; another program's table is none of ours."""
    content = 'where = "top:1"\nmany = 5\n[harness]\nmany = 6\nloud = true\nnames = ["a", "b"]\n[sandbox]\nodd = 1\n'
    assert filed(tmp_path, content, HANDMESH_WHERE="env:2") == Settings("env:2", 6, True, "a,b", "x://y", None)
    assert filed(tmp_path, content, "session").many == 5


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """Unknown names with the nearest known, values of no use, and the environment's: each with its place."""
    content = 'manny = 5\nwhere = "nowhere"\n[harnes]\n[harness]\nloud = {a = 1}\nzzz = 1\n'
    with pytest.raises(SettingsError) as problems:
        filed(tmp_path, content, HANDMESH_MANY="0")
    assert str(problems.value).replace(f"{tmp_path / 'mesh.toml'}: ", "").splitlines() == [
        "[harnes] is no program's table; perhaps harness",
        "manny is no setting; perhaps many",
        "[harness] loud is a dict, expected text, a number, true, false or a list",
        "[harness] zzz is no setting",
        "HANDMESH_WHERE is 'nowhere', expected host:port: Where it is.",
        "HANDMESH_MANY is '0', expected a whole number from 1 up: How many.",
    ]


@pytest.mark.parametrize(("content", "said"), [("many = = 1", "expected TOML"), (None, "can be read: FileNotFound")])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    """Whether it is missing or no TOML."""
    if content:
        (tmp_path / "x").write_text(content)
    with pytest.raises(SettingsError, match=f"^{FILE} is .*{said}"):
        read(Settings, {FILE: str(tmp_path / "x")})


def test_no_error_shows_what_may_be_a_secret(tmp_path: Path) -> None:
    """A key where its file should be named, a password in an address."""
    with pytest.raises(SettingsError) as problems:
        filed(tmp_path, 'key_file = "sk-canary"\nstore = "u:canary@host"\n[harness]\n', HANDMESH_WHERE="//u:canary@h")
    assert "canary" not in str(problems.value)
    assert "9 characters" in str(problems.value) and "***@h" in str(problems.value)


def test_a_variable_that_nobody_reads_has_its_nearest() -> None:
    """A misspelt one is no error, since others may read it: it is warned of."""
    source = {"HANDMESH_MANNY": "1", "HANDMESH_WHERE": "x:1", "HANDMESH_DATA_DIR": "/x", FILE: "y", "OTHER": ""}
    assert settings.unread(Settings, source) == {"HANDMESH_MANNY": "HANDMESH_MANY"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_setting_is_itself_and_no_secret_is_a_value(program: str) -> None:
    """No field hides one that every service has, no variable means two things, and secrets are named by their files."""
    kind = of(program)
    variables = settings.variables(kind)
    assert len(set(variables)) == len(variables)
    if issubclass(kind, Mesh):
        assert set(settings.variables(Mesh)) <= set(variables)
    secrets = [name for name in variables if re.search("KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS|APPROLE", name)]
    assert [name for name in secrets if not name.endswith("_FILE")] == []
    assert all(field.metadata["meaning"].endswith(".") for field in dataclasses.fields(kind))


def checked(program: str, **environment: str) -> tuple[int, list[str]]:
    """Runs a program's `--check`; returns its code and what it said."""
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", f"services.{program}", "--check"]
    done = subprocess.run(command, env=path | environment, capture_output=True, text=True, timeout=60)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_check_looks_into_the_files_that_settings_name(tmp_path: Path) -> None:
    """Wrong values are said before any file is opened; then certificates and the service's own files, all at once."""
    (tmp_path / "retention.json").write_text("{}")
    (tmp_path / "mesh.toml").write_text('[session]\nnats_ulr = "x"\nretention_file = "retention.json"\n')
    told = {"HANDMESH_LISTEN": "127.0.0.1:0", "HANDMESH_TLS_DIR": str(tmp_path), FILE: str(tmp_path / "mesh.toml")}
    code, said = checked("session", **told)
    assert code == 1
    assert said[0].startswith("session: ") and said[0].endswith("[session] nats_ulr is no setting; perhaps nats_url")
    assert said[1].startswith("session: HANDMESH_RETENTION_FILE is 14 characters that are not an absolute path")
    (tmp_path / "mesh.toml").write_text(f'[session]\nretention_file = "{tmp_path}/retention.json"\n')
    code, said = checked("session", **told, HANDMESH_MANY="1")
    assert code == 1
    folder = f"session: HANDMESH_TLS_DIR is '{tmp_path}', expected"
    assert said == [
        "session: HANDMESH_MANY is no setting",
        f"{folder} cert.pem and key.pem in it that can be used: FileNotFoundError",
        f"{folder} ca.pem in it that can be used: FileNotFoundError",
        f"session: HANDMESH_RETENTION_FILE: {tmp_path}/retention.json holds no list of rules",
    ]
    ensure_certificates(tmp_path / "tls", ["session"], datetime.datetime.now(datetime.UTC))
    (tmp_path / "retention.json").write_text("[]")
    assert checked("session", **told | {"HANDMESH_TLS_DIR": str(tmp_path / "tls" / "session")}) == (
        0,
        ["session: what is configured is right"],
    )


def test_check_of_nothing_shows_what_can_be_set() -> None:
    """So that a service can be tried alone."""
    code, said = checked("session.migrate")
    assert (code, said[0]) == (0, "migrate: ok")
    assert any("HANDMESH_NATS_URL" in line for line in said)
