"""What the harness service is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.kit.settings import REQUIRED, Mesh, addresses, existing, flag, path, setting, tuning, url, whole


def seconds(value: str) -> float:
    """Takes a number of seconds, 0 among them."""
    if not value.replace(".", "", 1).isdecimal() or not value.isascii() or float(value) > 60:
        raise ValueError("a number of seconds, at most 60")
    return float(value)


def names(value: str) -> tuple[str, ...]:
    """Takes names, joined by commas."""
    found = tuple(each.strip() for each in value.split(","))
    if not all(found):
        raise ValueError("names, joined by commas")
    return found


@dataclass(frozen=True)
class Settings(Mesh):
    """Settings of the harness service."""

    session_address: str = setting(
        "HANDMESH_SESSION_ADDRESS",
        addresses,
        REQUIRED,
        "Where the session service is: one address, or several of replicas with commas.",
    )
    sandbox_address: str = setting(
        "HANDMESH_SANDBOX_ADDRESS", addresses, REQUIRED, "Where the sandbox service is; as above."
    )
    vault_proxy_address: str = setting(
        "HANDMESH_VAULT_PROXY_ADDRESS", addresses, REQUIRED, "Where the vault proxy is; as above."
    )
    model_key_file: Path | None = setting("HANDMESH_MODEL_KEY_FILE", path, None, "File with the model's API key.")
    model_base_url: str | None = setting("HANDMESH_MODEL_BASE_URL", url, None, "Another endpoint of the model's API.")
    preload: bool = setting(
        "HANDMESH_MODEL_PRELOAD",
        flag,
        False,
        "Load the model's library at the start: the first answer comes a second sooner, for 55 MB of an idle harness.",
    )
    model_prices_file: Path | None = setting(
        "HANDMESH_MODEL_PRICES_FILE",
        existing,
        None,
        "TOML file of models' prices, before the built-in ones.",
    )
    capacity: int = setting("HANDMESH_CAPACITY", whole, 100, "Most sessions that this harness works on at once.")
    claude_code_processes: int = tuning(
        "HANDMESH_CLAUDE_CODE_PROCESSES",
        whole,
        8,
        "Most turns of `claude_code` sessions at once, each a process of Claude Code with 220 MB; others wait.",
    )
    linger: float = tuning(
        "HANDMESH_LINGER_SECONDS",
        seconds,
        5.0,
        "How long a session is kept when its turn has ended: what is said to it meanwhile is answered sooner.",
    )
    model_silence: int = tuning(
        "HANDMESH_MODEL_SILENCE_SECONDS",
        whole,
        90,
        "How long the model may say nothing within an answer before it is asked again; its API says something every "
        "few seconds.",
    )
    harness_types: tuple[str, ...] = tuning(
        "HANDMESH_HARNESS_TYPES",
        names,
        (),
        "The harness types that this process is, with commas; one of your own as package.module. Unset: all it can be.",
    )
