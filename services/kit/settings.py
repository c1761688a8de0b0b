"""Settings: one frozen dataclass per service, read once, from the environment and from a file that it names.

    @dataclass(frozen=True)
    class Settings:
        nats_url: str = setting("HANDMESH_NATS_URL", text, "nats://127.0.0.1:7420", "Where NATS is.")

All problems are reported at once, each with the variable, its value and what was expected. `settings_sources` says what
the file looks like. A value that may be a secret, in the place of the path of its file, is never shown.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from services.kit import limits
from services.kit.settings_sources import CONFIG_FILE, from_file, nearest, shown

T = TypeVar("T")
REQUIRED: Any = object()
EVERYBODYS = (
    CONFIG_FILE,
    "HANDMESH_DATA_DIR",
)  # of each process of `handmesh up`, for whoever looks at it from outside


class SettingsError(Exception):
    """Some settings are wrong. Its text has a line for each."""

    @classmethod
    def of(cls, problems: list[str]) -> SettingsError:
        """Makes one of several lines."""
        return cls("\n".join(problems))


def text(value: str) -> str:
    """Takes any text that is not empty."""
    if not value:
        raise ValueError("some text")
    return value


def whole(value: str) -> int:
    """Takes a whole number from 1 up."""
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise ValueError("a whole number from 1 up")
    return int(value)


def flag(value: str) -> bool:
    """Takes 1 or 0."""
    if value not in ("1", "0"):
        raise ValueError("1 or 0")
    return value == "1"


def address(value: str) -> str:
    """Takes `host:port`."""
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("host:port")
    return value


def addresses(value: str) -> str:
    """Takes `host:port`, or several of them joined by commas: replicas. A name may stand for several, too."""
    found = [each.strip() for each in value.split(",")]
    try:
        for each in found:
            address(each)
    except ValueError:
        raise ValueError("host:port, or several with commas") from None
    return ",".join(found)


def url(value: str) -> str:
    """Takes an address with a scheme."""
    if "://" not in value:
        raise ValueError("an address with a scheme, such as nats:// or https://")
    return value


def collector(value: str) -> str:
    """Takes the address of an OpenTelemetry collector."""
    if not value.startswith(("http://", "https://")) or "@" in value:
        raise ValueError("http://host:port, or https://host:port")
    return value


def ratio(value: str) -> float:
    """Takes a number from 0 to 1."""
    if not value.isascii() or not value.replace(".", "", 1).isdecimal() or float(value) > 1:
        raise ValueError("a number from 0 to 1")
    return float(value)


def path(value: str) -> Path:
    """Takes a path."""
    return Path(text(value))


def existing(value: str) -> Path:
    """Takes the path of a file or folder that is there."""
    found = Path(value)
    if not found.exists():
        raise ValueError("the path of a file or folder that is there")
    return found


def one_of(*words: str) -> Callable[[str], str]:
    """Takes one of the words."""

    def parse(value: str) -> str:
        if value not in words:
            raise ValueError("one of " + ", ".join(words))
        return value

    return parse


def setting(variable: str, parse: Callable[[str], Any], default: Any, meaning: str) -> Any:
    """Declares a field: its variable, how it is parsed, its default (or REQUIRED) and what it means."""
    return dataclasses.field(metadata={"variable": variable, "parse": parse, "default": default, "meaning": meaning})


def tuning(variable: str, parse: Callable[[str], Any], default: Any, meaning: str) -> Any:
    """Declares a field that most never touch: whoever makes the class by hand may leave it out."""
    metadata = {"variable": variable, "parse": parse, "default": default, "meaning": meaning}
    return dataclasses.field(default=default, kw_only=True, metadata=metadata)


@dataclass(frozen=True)
class Mesh:
    """What every service is told."""

    listen: str = setting("HANDMESH_LISTEN", address, REQUIRED, "Where the mesh's services call: mutual TLS.")
    client_listen: str | None = setting(
        "HANDMESH_CLIENT_LISTEN", address, None, "Where clients call with an API key: plain text on loopback, else TLS."
    )
    tls_dir: Path = setting("HANDMESH_TLS_DIR", existing, REQUIRED, "Folder of ca.pem, cert.pem and key.pem.")
    api_keys_file: Path | None = setting(
        "HANDMESH_API_KEYS_FILE",
        existing,
        None,
        "JSON list of {sha256, tenant, name, scope}: the operator's API keys. The session service reads it; another "
        "one only when it has no session service.",
    )
    log_level: str = setting(
        "HANDMESH_LOG_LEVEL", one_of("debug", "info", "warning", "error"), "info", "From where on to log."
    )
    identities_file: Path | None = tuning(
        "HANDMESH_IDENTITIES_FILE",
        existing,
        None,
        "JSON {name in certificates: service}: which SPIFFE ids and DNS names stand for which service. None means "
        "spiffe://handmesh/<service>.",
    )
    caller_calls: int = tuning(
        "HANDMESH_CALLER_CALLS", whole, limits.CALLER_CALLS, "Most unary calls of one client at once."
    )
    caller_calls_per_second: int = tuning(
        "HANDMESH_CALLER_CALLS_PER_SECOND", whole, limits.CALLS_PER_SECOND, "Most calls of one client in a second."
    )
    caller_burst: int = tuning(
        "HANDMESH_CALLER_BURST", whole, limits.BURST, "Most calls of one client at once after a rest."
    )
    caller_streams: int = tuning(
        "HANDMESH_CALLER_STREAMS", whole, limits.CALLER_STREAMS, "Most streams that one client has open at once."
    )
    caller_bytes: int = tuning(
        "HANDMESH_CALLER_BYTES", whole, limits.CALLER_BYTES, "Most bytes of one client's requests at work at once."
    )
    call_seconds: int = tuning(
        "HANDMESH_CALL_SECONDS", whole, limits.CALL_SECONDS, "For a client's unary call that brings no deadline."
    )
    otlp_endpoint: str | None = tuning(
        "HANDMESH_OTLP_ENDPOINT",
        collector,
        None,
        "An OpenTelemetry collector (OTLP over gRPC), which gets traces: http://host:4317, or https:// for TLS.",
    )
    trace_file: Path | None = tuning(
        "HANDMESH_TRACE_FILE",
        path,
        None,
        "A file that gets traces where there is no collector: OTLP's JSON, in lines.",
    )
    trace_ratio: float = tuning(
        "HANDMESH_TRACE_RATIO", ratio, 1.0, "The share of traces that are recorded, from 0 to 1, when they are at all."
    )
    replica_choice: str = tuning(
        "HANDMESH_REPLICA_CHOICE",
        one_of("hash", "random"),
        "hash",
        "Which replica of another service is asked: by a hash of the session, so always the same, or any.",
    )
    metrics_listen: str | None = tuning(
        "HANDMESH_METRICS_LISTEN",
        address,
        None,
        "Where Prometheus reads `/metrics`: plain HTTP that anyone who reaches it may read. Unset: nothing is counted.",
    )
    failpoints: Path | None = tuning(
        "HANDMESH_FAILPOINTS",
        existing,
        None,
        "For tests: a folder of files that kill, stop or fail this process (docs/crash.md). Refused off loopback.",
    )

    @property
    def pinned(self) -> bool:
        """Whether what belongs to a session goes to the same replica of a service."""
        return self.replica_choice == "hash"


def read(kind: type[T], environment: Mapping[str, str] | None = None, program: str = "") -> T:
    """Reads a settings class from the environment, and from the file that HANDMESH_CONFIG_FILE names, where the
    environment has nothing. `program` is whose table of the file counts. Raises SettingsError with every problem."""
    source = os.environ if environment is None else environment
    filed, problems = from_file(source.get(CONFIG_FILE), variables(kind), program)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        variable, parse, default = (field.metadata[key] for key in ("variable", "parse", "default"))
        given = source.get(variable, filed.get(variable))
        if given is None and default is REQUIRED:
            problems.append(f"{variable} is not set: {field.metadata['meaning']}")
            continue
        try:
            values[field.name] = default if given is None else parse(given)
        except ValueError as expected:
            said = shown(variable, given or "")
            problems.append(f"{variable} is {said}, expected {expected}: {field.metadata['meaning']}")
    problems += getattr(kind, "contradictions", lambda _: [])(values)
    if problems:
        raise SettingsError.of(problems)
    return kind(**values)


def variables(kind: type) -> list[str]:
    """Lists the variables that a settings class reads."""
    return [field.metadata["variable"] for field in dataclasses.fields(kind)]


def given(kind: type, environment: Mapping[str, str] | None = None) -> bool:
    """Says whether anything was configured at all."""
    source = os.environ if environment is None else environment
    return any(name in source for name in (CONFIG_FILE, *variables(kind)))


def unread(kind: type, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables of ours that are set and that nobody reads here, each with the nearest that is read."""
    source = os.environ if environment is None else environment
    known = [*variables(kind), *EVERYBODYS]
    mistaken = (name for name in source if name.startswith("HANDMESH_") and name not in known)
    return {name: nearest(name, known) for name in sorted(mistaken)}


def describe(kind: type) -> str:
    """Lists a settings class's variables with default and meaning, for `--help` and the docs."""
    lines = []
    for field in dataclasses.fields(kind):
        default = field.metadata["default"]
        shown = "required" if default is REQUIRED else f"default: {'none' if default is None else default}"
        lines.append(f"  {field.metadata['variable']}  ({shown})\n      {field.metadata['meaning']}")
    return "\n".join(lines)
