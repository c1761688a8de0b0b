"""Who may do something to a sandbox: for a session's, its harness with a living grant, and clients of its tenant.

A sandbox without a session is its maker's: a client's is for clients of its tenant. Without a session service nobody
can be asked whose a session is, and everybody who may call at all may do everything to its sandboxes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from handmesh.session.v1.session_pb2 import CheckGrantResponse
from services.kit.errors import Conflict, Denied, Gone, Unauthenticated
from services.kit.grants import GRANT_KEY, Grants, shown
from services.kit.guard import Context
from services.kit.identity import current as caller
from services.sandbox.backends import Backends
from services.sandbox.hand import Labels, SandboxInfo
from services.sandbox.mounts import Mount
from services.sandbox.owners_core import EVERYTHING, Right, right_of, transferred
from services.sandbox.passes import Passes
from services.sandbox.resources import Resource
from services.sandbox.session import Session

MOST_TENANTS = 10_000  # remembered: a session's never changes
HARNESS = "harness"


class Leave:
    """Asks the session service. `acts` are calls that change something or let something run."""

    def __init__(
        self,
        backends: Backends,
        session: Session | None = None,
        grants: Grants | None = None,
        passes: Passes | None = None,
    ) -> None:
        """Notes the grants that are shown and valid."""
        self._backends = backends
        self._session = session
        self._grants = grants
        self._passes = passes or Passes()
        self._tenants: OrderedDict[str, str] = OrderedDict()

    async def to_look(self, sandbox_id: str) -> None:
        """Lets the mesh and the tenant's clients see a sandbox. Raises Gone (`SANDBOX_GONE`), as if there were none."""
        await self._check_tenant(await self._labels(sandbox_id), sandbox_id)

    async def on_behalf(self, context: Context) -> str:
        """Returns the tenant whose hands a call may mean: the client's, or that of the grant that a harness shows.

        Empty when there is neither. Raises Unauthenticated (`GRANT_INVALID`).
        """
        tenant = caller().tenant
        if tenant is not None or self._grants is None or caller().kind != HARNESS:
            return tenant or ""
        metadata = tuple(context.invocation_metadata() or ())
        if not any(key == GRANT_KEY for key, _ in metadata):
            return ""
        return (await self._grants.check(shown(metadata))).tenant

    async def seen(self, found: Sequence[SandboxInfo]) -> list[SandboxInfo]:
        """Returns those that the caller may know of: the mesh of all, a client of its tenant's. Free ones are nobody's.

        Raises Unavailable when nobody can be asked.
        """
        if caller().tenant is None:
            return list(found)
        return [info for info in found if not info.labels.pool and await self._is_callers(info.labels)]

    async def to_release(self, context: Context, sandbox_id: str) -> bool:
        """Says whether to release a sandbox: another tenant's is as good as none. Half-made ones are nobody's.

        A harness releases what is its session's. Raises Unauthenticated (`GRANT_INVALID`).
        """
        try:
            labels = await self._labels(sandbox_id)
        except Gone:
            return True
        try:
            await self._check_tenant(labels, sandbox_id)
        except Gone:
            return False
        if caller().kind == HARNESS and self._grants is not None and labels.standing and not labels.session_id:
            raise Unauthenticated("GRANT_INVALID", "a hand that stands outside of sessions is no harness's")
        await self._granted(context, labels.session_id)
        now = await self._labels(sandbox_id)
        if caller().kind == HARNESS and now.session_id != labels.session_id:
            raise transferred(now)  # it changed its owner while the grant was looked at
        return True

    async def to_act(self, context: Context, sandbox_id: str, epoch: int) -> Right:
        """Lets also a harness do something, under its session's current epoch.

        Raises Unauthenticated (`GRANT_INVALID`), Conflict (`EPOCH_STALE`), Unavailable when nobody can be asked.
        """
        right = await self.to_execute(context, sandbox_id, epoch)
        if right.past:
            raise transferred(await self._labels(sandbox_id))
        if right.reads:
            raise _only_read()
        return right

    async def to_execute(self, context: Context, sandbox_id: str, epoch: int) -> Right:
        """Says what somebody may run in a sandbox: all, what reads, or nothing but to wait for what ran before.

        Raises as `to_act`.
        """
        labels = await self._labels(sandbox_id)
        await self._check_tenant(labels, sandbox_id)
        if self._grants is None or caller().kind != HARNESS or not (labels.session_id or labels.standing):
            return EVERYTHING
        granted = await self._grants.check(grant := shown(context.invocation_metadata()))
        right = right_of(labels, granted.session_id)
        if right is None:
            raise Unauthenticated("GRANT_INVALID", "the grant is another session's")
        if granted.epoch != epoch:
            raise Conflict("EPOCH_STALE", "a newer harness owns the session", epoch=granted.epoch)
        self._passes.note(granted.session_id, granted.epoch, grant)
        return right

    async def to_hand_over(self, context: Context, sandbox_id: str, epoch: int) -> Right:
        """Lets somebody give a hand away or share it: clients, and its session's harness. Raises as `to_act`.

        An owner of before may ask again, with `past`, for what was done already.
        """
        right = await self.to_execute(context, sandbox_id, epoch)
        if right.reads:
            raise _only_read()
        if caller().kind == HARNESS and not (right.past or (await self._labels(sandbox_id)).session_id):
            raise Unauthenticated("GRANT_INVALID", "no session owns this hand")
        return right

    async def to_provision(self, context: Context, session_id: str, epoch: int) -> None:
        """Lets somebody make a sandbox for a session. Raises as `to_act`, and Gone (`SESSION_NOT_FOUND`)."""
        if self._session is not None and session_id:
            tenant = caller().tenant
            if tenant is not None and tenant != await self._tenant_of(self._session, session_id):
                raise Gone(  # as the session service says it of what is not there
                    "SESSION_NOT_FOUND", f"no such session: {session_id}", session_id=session_id
                )
            await self._check_grant(context, session_id, epoch)

    async def to_mount(self, context: Context, resources: Sequence[Resource]) -> None:
        """Lets a harness mount the memory stores that its session may reach; of clients the tenant's are asked later.

        Raises Gone (`MEMORY_NOT_FOUND`), Denied (`MEMORY_READ_ONLY`), Unauthenticated (`GRANT_INVALID`).
        """
        wanted = [resource for resource in resources if isinstance(resource, Mount)]
        if not wanted or self._grants is None or caller().kind != HARNESS:
            return
        granted = await self._grants.fresh(shown(context.invocation_metadata()))
        reads = {store.memory_store_id: store.read_only for store in granted.memory_stores}
        for mount in wanted:
            if mount.store_id not in reads:
                raise Gone("MEMORY_NOT_FOUND", "no such memory store")
            if reads[mount.store_id] and not mount.read_only:
                raise Denied("MEMORY_READ_ONLY", "the session may only read this memory store")

    async def _labels(self, sandbox_id: str) -> Labels:
        _, info = await self._backends.find(sandbox_id)
        return info.labels

    async def _check_tenant(self, labels: Labels, sandbox_id: str) -> None:
        if not await self._is_callers(labels):
            raise Gone("SANDBOX_GONE", "there is no such sandbox (any more)", sandbox_id=sandbox_id)

    async def _is_callers(self, labels: Labels) -> bool:
        tenant = caller().tenant
        if tenant is None:
            return True
        if not labels.session_id:
            return labels.tenant in ("", tenant)
        if self._session is None:
            return True
        try:
            return tenant == await self._tenant_of(self._session, labels.session_id)
        except Gone:
            return False

    async def _tenant_of(self, session: Session, session_id: str) -> str:
        known = self._tenants.get(session_id)
        if known is None:
            known = self._tenants[session_id] = await session.tenant_of(session_id)
            if len(self._tenants) > MOST_TENANTS:
                self._tenants.popitem(last=False)
        return known

    async def _check_grant(self, context: Context, session_id: str, epoch: int) -> None:
        granted = await self._granted(context, session_id)
        if granted is not None and granted.epoch != epoch:
            raise Conflict("EPOCH_STALE", "a newer harness owns the session", epoch=granted.epoch)

    async def _granted(self, context: Context, session_id: str) -> CheckGrantResponse | None:
        """Returns what a harness's grant for the session allows, and notes the grant. Of others none is asked."""
        if self._grants is None or not session_id or caller().kind != HARNESS:
            return None
        grant = shown(context.invocation_metadata())
        granted = await self._grants.check(grant)
        if granted.session_id != session_id:
            raise Unauthenticated("GRANT_INVALID", "the grant is another session's")
        self._passes.note(session_id, granted.epoch, grant)
        return granted


def _only_read() -> Denied:
    return Denied("HAND_READ_ONLY", "this hand is only shared with the session: it may only be read", name="")
