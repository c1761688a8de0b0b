"""Sandboxes of Linux namespaces made by bubblewrap: no engine, no root needed. The embedded default.

`place.py` makes and ends them; `program.py` and `launch.py` start bubblewrap; `view.py` says what a sandbox sees,
`seccomp.py` what it may ask of the kernel; `cgroups.py` and `users.py` keep them apart where the service is root.
"""

from __future__ import annotations

from services.sandbox.hand import Hand, HandSettings

KEYS = frozenset({"rootfs"})


def make(settings: HandSettings) -> Hand:
    """Makes the hand. Starts nothing."""
    from services.sandbox.hands.bubblewrap.place import Bubblewrap
    from services.sandbox.records import Records
    from services.sandbox.runner_hand import RunnerHand

    return RunnerHand(Bubblewrap(settings.state_dir), Records(settings.state_dir / "sandboxes"))
