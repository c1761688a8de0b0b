"""The hands of this service, found by folder name, made on first use; and which of them has a sandbox."""

from __future__ import annotations

import importlib
import pkgutil
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from handmesh.replicas.ranking import signed
from services.kit.errors import Gone, ServiceError
from services.kit.ids import mint
from services.kit.logs import Log
from services.sandbox import hands
from services.sandbox.dialled import DialledIn
from services.sandbox.hand import Hand, HandSettings, SandboxInfo

MOST_REMEMBERED = 10_000
DIALLED = "remote"  # the backend of hands that dial out: the two methods of the contract for workers are its

_log = Log("services.sandbox.backends")


def names() -> frozenset[str]:
    """Names the backends that there are: the folders under `hands/`."""
    return frozenset(module.name for module in pkgutil.iter_modules(hands.__path__))


def keys() -> Mapping[str, frozenset[str]]:
    """Returns for each backend the keys of a recipe that it understands beside those of every recipe."""
    return {name: importlib.import_module(f"{hands.__name__}.{name}").KEYS for name in sorted(names())}


class Backends:
    """All hands. A backend's libraries are imported when it is first used, or has sandboxes from before."""

    def __init__(self, settings: HandSettings, node: str = "") -> None:
        """Gives each backend a folder of its own under the state folder. `node` is this replica's name, if it has
        others beside it."""
        self._settings = settings
        self._node = node
        self._hands: dict[str, Hand] = {}
        self._found: OrderedDict[str, tuple[Hand, SandboxInfo]] = OrderedDict()  # those asked for last

    @property
    def state_dir(self) -> Path:
        """The folder of everything that sandboxes need kept."""
        return self._settings.state_dir

    def hand(self, name: str) -> Hand:
        """Returns a backend's hand, and makes it on first use."""
        if name not in self._hands:
            own = replace(self._settings, state_dir=self._settings.state_dir / name)
            self._hands[name] = importlib.import_module(f"{hands.__name__}.{name}").make(own)
        return self._hands[name]

    def dialled(self) -> DialledIn | None:
        """Returns the port of the hands that dial out, if workers have ever connected, or may."""
        hand = self._hands.get(DIALLED)
        if hand is None and (self._settings.state_dir / DIALLED).is_dir():
            hand = self.hand(DIALLED)
        return cast(DialledIn, hand) if hand is not None else None

    def takes_workers(self) -> DialledIn:
        """Returns the same, and makes it on first use."""
        return cast(DialledIn, self.hand(DIALLED))

    def with_state(self) -> list[Hand]:
        """Returns the hands that may have sandboxes."""
        return [self.hand(name) for name in sorted(names()) if (self._settings.state_dir / name).is_dir()]

    def mint(self) -> str:
        """Mints the id of a sandbox: where there are replicas it names this one."""
        minted = mint("sbx")
        return signed(minted, self._node) if self._node else minted

    def remember(self, hand: Hand, info: SandboxInfo) -> None:
        """Takes note of a sandbox that was made."""
        self._found[info.labels.sandbox_id] = (hand, info)
        if len(self._found) > MOST_REMEMBERED:
            self._found.popitem(last=False)

    def forget(self, sandbox_id: str) -> None:
        """Takes note that a sandbox is gone. Idempotent."""
        self._found.pop(sandbox_id, None)

    async def find(self, sandbox_id: str) -> tuple[Hand, SandboxInfo]:
        """Returns a sandbox and its hand. Raises Gone (`SANDBOX_GONE`), also for a free one: it is nobody's yet."""
        found = self._found.get(sandbox_id)
        if found is None:
            for hand in self.with_state():
                info = await hand.find(sandbox_id)
                if info is not None and not info.labels.pool:
                    found = (hand, info)
                    self.remember(*found)
                    break
            else:
                raise Gone("SANDBOX_GONE", "there is no such sandbox (any more)", sandbox_id=sandbox_id)
        return found

    async def listed(self) -> list[tuple[Hand, SandboxInfo]]:
        """Lists what lives on every backend that answers; the log tells of those that do not."""
        found = []
        for hand in self.with_state():
            try:
                found += [(hand, info) for info in await hand.list()]
            except ServiceError as error:
                _log.warning("sandboxes not listed", reason=error.reason, message=error.message)
        return found

    async def prune(self) -> None:
        """Forgets the sandboxes that are not there any more."""
        for sandbox_id, (hand, _) in list(self._found.items()):
            if await hand.find(sandbox_id) is None:
                self.forget(sandbox_id)

    async def close(self) -> None:
        """Closes every hand that was made."""
        for hand in self._hands.values():
            await hand.close()
