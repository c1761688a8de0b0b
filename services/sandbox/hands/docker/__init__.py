"""Sandboxes as containers of a Docker Engine, under a strict profile.

`place.py` makes and ends containers; `profile.py` is the profile, with the system calls of `seccomp.json`.
"""

from __future__ import annotations

from services.sandbox.hand import Hand, HandSettings

KEYS = frozenset({"image", "runtime", "packages", "setup"})


def make(settings: HandSettings) -> Hand:
    """Makes the hand. Calls no engine and does not import the Docker SDK yet."""
    from services.sandbox.hands.docker.place import Containers
    from services.sandbox.records import Records
    from services.sandbox.runner_hand import RunnerHand

    place = Containers(settings.state_dir, settings.docker_host or "unix:///var/run/docker.sock")
    return RunnerHand(place, Records(settings.state_dir / "sandboxes"))
