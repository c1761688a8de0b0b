"""Sandboxes of Linux namespaces made by bubblewrap: no engine, no root needed. The embedded default.

`place.py` starts and ends them; `view.py` says what they see; `seccomp.py` what they may ask of the kernel;
`cgroups.py` limits them where the service is root; `launch.py` runs before bubblewrap, as a program of its own.
"""

from __future__ import annotations

from services.sandbox.hand import Hand, HandSettings


def make(settings: HandSettings) -> Hand:
    """Makes the hand. Starts nothing."""
    from services.sandbox.hands.bubblewrap.place import Bubblewrap
    from services.sandbox.records import Records
    from services.sandbox.runner_hand import RunnerHand

    return RunnerHand(Bubblewrap(settings.state_dir), Records(settings.state_dir / "sandboxes"))
