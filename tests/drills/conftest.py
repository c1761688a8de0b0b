"""What the drills share with the tests of the session service."""

from __future__ import annotations

from tests.session.conftest import identities, run

__all__ = ["identities", "run"]
