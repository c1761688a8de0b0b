"""What can go wrong before a mesh runs.

LaunchError
+- NotInstalled    a program is not on this machine: install it
+- PortTaken       another process listens there: stop it, or choose another port base
+- AlreadyRunning  another launcher holds the data directory: use it, or stop it
+- PartFailed      a part ended, or was not ready in time: read its log
+- VaultRefused    OpenBao answered with an error, or its keys are lost: do what the message says
"""

from pathlib import Path


class LaunchError(Exception):
    """A mesh could not be started, or lost a part. The message is for a person and holds no secret."""


class NotInstalled(LaunchError):
    """A program that a part needs is not on this machine. The message says how to get it."""


class PortTaken(LaunchError):
    """Something else listens on a port that the mesh needs. The message names who."""


class AlreadyRunning(LaunchError):
    """Another launcher holds the data directory.

    `pid` is that launcher's process id, None in the instant before it has said so.
    """

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class PartFailed(LaunchError):
    """A part of the mesh ended by itself, or was not ready before its deadline.

    `part` is its name, `log` the file it writes to. The message holds the last lines of the log.
    """

    def __init__(self, message: str, part: str, log: Path) -> None:
        super().__init__(message)
        self.part = part
        self.log = log


class VaultRefused(LaunchError):
    """OpenBao did not do what the launcher asked. `status` is its HTTP status, or None when it never was asked."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
