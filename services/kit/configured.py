"""How a program is told its settings, and how it says what is wrong with them: at its start, and by `--check`."""

from __future__ import annotations

import argparse
import ssl
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from services.kit import settings
from services.kit.logs import Log

S = TypeVar("S")
Check = Callable[[S], object]  # raises SettingsError for a file that a setting names and that is not what it should be

_log = Log("services.kit.configured")


def arguments(name: str, program: str, kind: type, about: str = "") -> argparse.ArgumentParser:
    """Makes the program's parser: `--help` has every setting, `--check` looks at what is configured."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=about,
        epilog=f"Settings, from the environment, or [{name}] of the TOML file that HANDMESH_CONFIG_FILE names:\n"
        + settings.describe(kind),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check", action="store_true", help="import everything, say what is wrong with what is configured, and exit"
    )
    return parser


def read(name: str, kind: type[S]) -> S:
    """Reads the settings, or ends the program with a line for each that is wrong."""
    try:
        return settings.read(kind, program=name)
    except settings.SettingsError as problems:
        sys.exit(said(name, problems))


def warn_of_unread(kind: type) -> None:
    """Logs which of our variables are set and read by nobody here: a misspelt one would be no error otherwise."""
    for variable, nearest in settings.unread(kind).items():
        _log.warning("a variable is no setting of this program", variable=variable, perhaps=nearest or None)


def said(name: str, problems: settings.SettingsError) -> str:
    """Spells problems, each with the program in front."""
    return "\n".join(f"{name}: {line}" for line in str(problems).splitlines())


def check(name: str, kind: type[S], checks: Sequence[Check[S]]) -> None:
    """Says what is wrong with what is configured, down to the files that settings name; where nothing is configured,
    what could be. Ends the program with 1 when something is wrong."""
    if not settings.given(kind):
        sys.stdout.write(f"{name}: ok\n{settings.describe(kind)}\n")
        return
    values = read(name, kind)
    problems: list[str] = []
    for look in (_certificates, *checks):
        try:
            look(values)
        except settings.SettingsError as problem:
            problems += str(problem).splitlines()
    for variable, nearest in settings.unread(kind).items():
        sys.stderr.write(f"{name}: {variable} is no setting{f'; perhaps {nearest}' if nearest else ''}\n")
    if problems:
        sys.exit(said(name, settings.SettingsError.of(problems)))
    sys.stdout.write(f"{name}: what is configured is right\n")


def _certificates(values: object) -> None:
    """Raises SettingsError unless the folder of certificates holds a key, its certificate and an authority."""
    if not isinstance(values, settings.Mesh):
        return
    folder, context = values.tls_dir, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("cert.pem and key.pem", lambda: context.load_cert_chain(folder / "cert.pem", folder / "key.pem")),
        ("ca.pem", lambda: context.load_verify_locations(folder / "ca.pem")),
    )
    problems = []
    for what, load in steps:
        try:
            load()
        except (OSError, ValueError) as problem:  # an SSLError is an OSError
            reason = getattr(problem, "reason", None) or type(problem).__name__
            problems.append(f"HANDMESH_TLS_DIR is {str(folder)!r}, expected {what} in it that can be used: {reason}")
    if problems:
        raise settings.SettingsError.of(problems)
