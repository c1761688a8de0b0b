"""What the service does: makes sandboxes by recipe, runs tools in them, keeps the old harness out.

Longer than a module should be: a short method for each call of the contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from services.kit import failpoints, tracing
from services.kit.errors import Conflict, Gone, Invalid, Refused, ServiceError
from services.kit.ids import mint
from services.kit.logs import Log
from services.sandbox import core, counting, owners_core
from services.sandbox.backends import Backends
from services.sandbox.doorman import Doorman
from services.sandbox.environments import Environments
from services.sandbox.hand import (
    FILES,
    REPOSITORIES,
    WORKSPACE,
    Chunk,
    ExecutionInfo,
    FileInfo,
    Hand,
    Labels,
    Order,
    Recipe,
    Result,
    SandboxInfo,
)
from services.sandbox.mounts import Mounts
from services.sandbox.networks import described
from services.sandbox.owners_core import EVERYTHING, Right
from services.sandbox.pool import Pools
from services.sandbox.resources import Load, Resource, Resources
from services.sandbox.runner import config
from services.sandbox.seeds_planting import Planting
from services.sandbox.seeds_rules import Repository
from services.sandbox.tools import Tool

OUTPUTS = f"{WORKSPACE}/{config.OUTPUTS}"  # what an agent has made for people
_log = Log("services.sandbox.sandboxes")


@dataclass(frozen=True)
class Call:
    """A call of a tool as it came in. Without an `execution_id` the caller owns the execution."""

    sandbox_id: str
    name: str
    input_json: str
    execution_id: str = ""
    seconds: float | None = None
    epoch: int = 0
    attach_only: bool = False


@dataclass(frozen=True)
class Wanted:
    """A sandbox as it was asked for."""

    environment: str = ""
    session_id: str = ""
    hand: str = ""
    request_id: str = ""
    epoch: int = 0
    resources: tuple[Resource, ...] = ()
    checkpoint_id: str = ""
    description: str = ""


@dataclass(frozen=True)
class Availability:
    """An environment, and why it cannot be followed here and now; empty when it can."""

    recipe: Recipe
    problem: str
    free: int  # sandboxes in its pool


@dataclass(frozen=True)
class Toolbox:
    """The tools of an environment's sandboxes, and what the operator says of it."""

    environment: str
    description: str
    tools: tuple[Tool, ...]


class Sandboxes:
    """The sandboxes of all backends."""

    def __init__(
        self,
        backends: Backends,
        environments: Environments,
        pools: Pools | None = None,
        resources: Resources | None = None,
        *,
        planting: Planting,
        doorman: Doorman | None = None,
    ) -> None:
        """Holds nothing that the hands do not carry themselves, but what it has seen of epochs."""
        self._planting = planting
        self._doorman = doorman or Doorman(environments)
        self._backends = backends
        self._environments = environments
        self._pools = pools or Pools(backends, environments)  # which gives nothing away unless somebody runs it
        self._resources = resources or Resources(None, Mounts(backends.state_dir / "mounts"))
        self._epochs = core.Epochs()
        self._killing: set[asyncio.Task[None]] = set()  # so that none is collected before it is done

    async def provision(self, wanted: Wanted, tenant: str | None = None, owner: str = "") -> SandboxInfo:
        """Makes a sandbox. Raises as `Hand.provision` and `Planting.plant` do, `ENVIRONMENT_UNKNOWN`, `EPOCH_STALE`.

        `tenant` is the caller's, None for one of the mesh; `owner` the one whose hands may be meant, if any.
        """
        recipe = self._recipe(wanted.environment, owner)
        load = await self._resources.load(
            wanted.resources, wanted.session_id, tenant, recipe.limits.disk_bytes, wanted.checkpoint_id
        )
        self._planting.check(load.repositories)
        self._epochs.admit(wanted.session_id, wanted.epoch)
        backend = self._backends.hand(recipe.backend)
        labels = _labels(self._backends.mint(), wanted, recipe, tenant)
        _check_able(backend, load)
        preparing, began = None, time.monotonic()
        if load.repositories:
            door = self._doorman.speaks_for(wanted.session_id)
            preparing = asyncio.create_task(self._planting.prepare(load.repositories, door))
        try:
            info, how = await self._made(backend, recipe, labels, load)
            self._backends.remember(backend, info)
            with self._resources.at_work(info.labels.sandbox_id):
                await self._provide(backend, info, load)
                if preparing is not None:
                    await self._plant(backend, info, load.repositories, preparing)
                await self._mount(backend, info, load)
        except ServiceError:
            counting.PROVISION_FAILURES.add(recipe.name)
            raise
        finally:
            if preparing is not None:
                preparing.cancel()
                await asyncio.gather(preparing, return_exceptions=True)
        counting.PROVISIONED.add(recipe.name, how)
        counting.PROVISION_SECONDS.observe(time.monotonic() - began, how)
        failpoints.hit("sandbox.sandbox_made")
        return info

    async def _made(self, backend: Hand, recipe: Recipe, labels: Labels, load: Load) -> tuple[SandboxInfo, str]:
        """Takes a sandbox out of the pool, or makes one. Says which: `pool` or `cold`."""
        about = {"handmesh.backend": recipe.backend, "handmesh.environment": tracing.word(recipe.name)}
        with tracing.span("provision sandbox", about) as span:
            how, info = "pool", await self._pools.claim(recipe, labels, load.contents)
            if info is None:
                how, info = "cold", await backend.provision(recipe, labels, load.contents)
            span.set({"handmesh.sandbox.id": info.labels.sandbox_id, "handmesh.made": how})
        return info, how

    def _recipe(self, environment: str, owner: str) -> Recipe:
        """Returns a recipe of the operator's, or of a hand that has dialled out for that tenant."""
        dialled = self._backends.dialled()
        if environment not in self._environments.recipes and owner and environment and dialled is not None:
            for recipe in dialled.known(owner):
                if recipe.name == environment:
                    return recipe
        recipe = self._environments.recipe(environment)
        return replace(recipe, tenant=owner) if recipe.worker else recipe

    async def _provide(self, hand: Hand, info: SandboxInfo, load: Load) -> None:
        """Gives a sandbox its doors. One that did not get them is not kept for nobody to find, as with mounts."""
        try:
            await self._doorman.provide(hand, info, bool(load.repositories))
        except BaseException:
            if not info.labels.request_id:
                await asyncio.shield(self.release(info.labels.sandbox_id))
            raise

    async def _mount(self, hand: Hand, info: SandboxInfo, load: Load) -> None:
        """Mounts memory stores. A sandbox that did not get them is not kept for nobody to find."""
        try:
            await self._resources.mount(hand, info.labels.sandbox_id, load)
        except BaseException:
            if not info.labels.request_id:  # with one, the caller asks again and gets it, and then its mounts
                await asyncio.shield(self.release(info.labels.sandbox_id))
            raise

    async def _plant(
        self, hand: Hand, info: SandboxInfo, repositories: Sequence[Repository], preparing: asyncio.Task[None]
    ) -> None:
        """Puts repositories into a sandbox that was just made, or that an earlier call of the same request has made."""
        sandbox_id, gate = info.labels.sandbox_id, self._doorman.gate(info)
        new = sandbox_id not in self._planting.planted()  # then nobody was told of it yet
        try:
            with tracing.span("plant repositories", {"handmesh.sandbox.id": sandbox_id}):
                await asyncio.wait([preparing])
                if new and gate is None:
                    preparing.result()
                await self._planting.plant(hand, sandbox_id, repositories, gate)
        except BaseException:
            if new:
                await asyncio.shield(self.release(sandbox_id))
            raise

    async def execute(self, call: Call, right: Right = EVERYTHING) -> Result:
        """Runs a tool, or waits for one that runs already, and returns what it said.

        Raises Refused (`HAND_TRANSFERRED`) for a new call of an owner of before, or of one that the hand leaves.
        """
        hand, info = await self._backends.find(call.sandbox_id)
        labels = info.labels
        owners_core.check_right(labels, right)
        tracing.about(right.session_id or labels.session_id)
        self._epochs.admit(right.session_id or labels.session_id, call.epoch)
        if call.attach_only and not call.execution_id:
            raise Invalid("ARGUMENT_INVALID", "attach_only needs an execution_id", field="execution_id")
        past = right.past or (frozenset({labels.generation}) if owners_core.is_leaving(labels) else frozenset())
        if past and not call.attach_only:
            await self._check_started(hand, labels, call.execution_id, past)
        if call.attach_only or past:
            return await self._result(hand, call.sandbox_id, call.execution_id)
        if right.reads:
            owners_core.check_reading(hand.tools_in(info), call.name)
        id, epoch = call.execution_id or mint("exec"), 0 if right.reads else call.epoch
        order = core.order(hand.tools_in(info), call.name, call.input_json, id, call.seconds, info.seconds, epoch)
        began = time.monotonic()
        await self._doorman.keep(hand, info, lambda: call.sandbox_id in self._planting.planted())
        try:
            failpoints.hit("sandbox.execution_asked")
            said = await self._run(hand, labels, order)
            result = await self._resources.synced(hand, call.sandbox_id, said)
            failpoints.hit("sandbox.execution_finished")
        except asyncio.CancelledError:
            if not call.execution_id:
                self._kill(hand, call.sandbox_id, id)
            raise
        except Gone:
            self._backends.forget(call.sandbox_id)
            raise
        seconds, outcome = round(time.monotonic() - began, 6), result.outcome.name
        counting.EXECUTIONS.add(call.name, outcome.lower())
        counting.EXECUTION_SECONDS.observe(seconds, call.name)
        about = {"sandbox_id": call.sandbox_id, "execution_id": id, "tool": call.name}
        _log.info("tool finished", **about, outcome=outcome, seconds=seconds)
        return result

    async def _run(self, hand: Hand, labels: Labels, order: Order) -> Result:
        """Runs an order for the owner that the labels name."""
        about = {"handmesh.sandbox.id": labels.sandbox_id, "handmesh.execution.id": tracing.word(order.execution_id)}
        try:
            with tracing.span(f"run {tracing.word(order.name)}", about) as span:
                result = await hand.run(labels.sandbox_id, replace(order, generation=labels.generation))
                span.set({"handmesh.outcome": result.outcome.name})
                return result
        except Conflict as conflict:
            if conflict.reason != "GENERATION_CONFLICT":
                raise
            now = await hand.find(labels.sandbox_id)
            raise owners_core.transferred(now.labels if now is not None else labels) from None

    async def _check_started(self, hand: Hand, labels: Labels, execution_id: str, generations: Collection[int]) -> None:
        """Raises Refused (`HAND_TRANSFERRED`) unless an execution was started in one of these generations."""
        known = await hand.executions(labels.sandbox_id) if execution_id else ()
        if not any(it.execution_id == execution_id and it.generation in generations for it in known):
            raise owners_core.transferred(labels)

    async def _result(self, hand: Hand, sandbox_id: str, execution_id: str) -> Result:
        async for said in hand.follow(sandbox_id, execution_id):
            if isinstance(said, Result):
                return await self._resources.synced(hand, sandbox_id, said)
        raise Gone("EXECUTION_UNKNOWN", "the execution has no result", execution_id=execution_id)

    def _kill(self, hand: Hand, sandbox_id: str, execution_id: str) -> None:
        """Cancels an execution whose owner is gone, apart from the owner's own task, which ends now."""

        async def cancel() -> None:
            try:
                await hand.cancel(sandbox_id, execution_id)
            except ServiceError as error:
                _log.warning("execution not cancelled", sandbox_id=sandbox_id, reason=error.reason)

        task = asyncio.create_task(cancel())
        self._killing.add(task)
        task.add_done_callback(self._killing.discard)

    async def watch(self, sandbox_id: str, execution_id: str, offset: int) -> AsyncIterator[Chunk | Result]:
        """Yields an execution's output from an offset on, then its result."""
        hand, _ = await self._backends.find(sandbox_id)
        async for said in hand.follow(sandbox_id, execution_id, max(0, offset)):
            yield said

    async def cancel(self, sandbox_id: str, execution_id: str, epoch: int, right: Right = EVERYTHING) -> None:
        """Kills an execution; one that is not known never starts."""
        hand, info = await self._backends.find(sandbox_id)
        owners_core.check_right(info.labels, right)
        self._epochs.admit(info.labels.session_id, epoch)
        await hand.cancel(sandbox_id, execution_id, epoch, info.labels.generation)

    async def executions(self, sandbox_id: str) -> tuple[ExecutionInfo, ...]:
        """Lists the executions that a sandbox remembers."""
        hand, _ = await self._backends.find(sandbox_id)
        return await hand.executions(sandbox_id)

    async def put(
        self,
        sandbox_id: str,
        resources: Sequence[Resource],
        epoch: int,
        tenant: str | None = None,
        right: Right = EVERYTHING,
    ) -> None:
        """Puts resources into a sandbox. Raises Refused (`HAND_TRANSFERRED`) for one that leaves its owner."""
        hand, info = await self._backends.find(sandbox_id)
        owners_core.check_right(info.labels, right)
        if owners_core.is_leaving(info.labels):
            raise owners_core.transferred(info.labels)
        with self._resources.at_work(sandbox_id):
            load = await self._resources.load(resources, info.labels.session_id, tenant, 0)
            self._planting.check(load.repositories)
            self._epochs.admit(info.labels.session_id, epoch)
            await hand.put(sandbox_id, load.contents)
            if load.repositories:
                await self._doorman.provide(hand, info, True)
                await self._planting.plant(hand, sandbox_id, load.repositories, self._doorman.gate(info))
            await self._resources.mount(hand, sandbox_id, load)

    async def checkpoint(
        self, sandbox_id: str, epoch: int, tenant: str | None = None, right: Right = EVERYTHING
    ) -> str:
        """Keeps a workspace as a blob of the session that owns the sandbox; returns its id."""
        hand, info = await self._backends.find(sandbox_id)
        owners_core.check_right(info.labels, right)
        self._epochs.admit(info.labels.session_id, epoch)
        return await self._resources.checkpoint(hand, info, tenant)

    async def files(self, sandbox_id: str, path: str) -> tuple[tuple[FileInfo, ...], bool]:
        """Lists files, and says whether there are more. Outputs whose folder a tool has removed are none."""
        hand, _ = await self._backends.find(sandbox_id)
        try:
            return await hand.files(sandbox_id, core.read_path(path))
        except Gone as error:
            if error.reason == "FILE_NOT_FOUND" and path.rstrip("/") == OUTPUTS:
                return (), False
            raise

    async def read_file(self, sandbox_id: str, path: str, offset: int) -> AsyncGenerator[bytes, None]:
        """Yields a file from an offset on."""
        hand, _ = await self._backends.find(sandbox_id)
        if offset < 0:
            raise Invalid("ARGUMENT_INVALID", f"offset is negative: {offset}", field="offset")
        async with aclosing(hand.read_file(sandbox_id, core.read_path(path), offset)) as pieces:
            async for piece in pieces:
                yield piece

    async def release(self, sandbox_id: str) -> None:
        """Destroys a sandbox, once what its tools have left in memory stores is written. Idempotent."""
        if self._resources.has_mounts(sandbox_id):
            with contextlib.suppress(Gone):
                await self._resources.release((await self._backends.find(sandbox_id))[0], sandbox_id)
        await self._doorman.forget(sandbox_id)
        for hand in self._backends.with_state():
            await hand.release(sandbox_id)
        self._planting.forget(sandbox_id)
        self._backends.forget(sandbox_id)  # at the end: until then somebody may find it
        self._resources.forget(sandbox_id)

    async def tools_of(self, sandbox_id: str) -> Toolbox:
        """Lists a sandbox's tools."""
        hand, info = await self._backends.find(sandbox_id)
        recipe = self._environments.recipes.get(info.labels.environment)
        return Toolbox(info.labels.environment, described(recipe) if recipe else "", hand.tools_in(info))

    def tools_by_environment(self, environment: str, owner: str = "") -> Toolbox:
        """Lists the tools that an environment's sandboxes will have. `owner` as for `provision`."""
        recipe = self._recipe(environment, owner)
        return Toolbox(recipe.name, described(recipe), self._backends.hand(recipe.backend).tools(recipe))

    async def found(self, sandbox_id: str) -> SandboxInfo:
        """Returns what is known of a sandbox. Raises Gone (`SANDBOX_GONE`)."""
        return (await self._backends.find(sandbox_id))[1]

    async def living(self, session_id: str) -> list[SandboxInfo]:
        """Lists the sandboxes that live, oldest first; of one session unless that is empty."""
        found = [info for hand in self._backends.with_state() for info in await hand.list()]
        kept = [info for info in found if session_id in ("", info.labels.session_id)]
        return sorted(kept, key=lambda info: (info.labels.create_time, info.labels.sandbox_id))

    async def environments(self, owner: str = "") -> list[Availability]:
        """Lists the environments by name, and tries whether each can be followed here and now."""
        dialled = self._backends.dialled()
        own = [recipe.name for recipe in (dialled.known(owner) if owner and dialled is not None else ())]
        names = sorted({*own, *self._environments.recipes})
        return [await self._try(self._recipe(name, owner)) for name in names]

    async def _try(self, recipe: Recipe) -> Availability:
        try:
            await self._backends.hand(recipe.backend).check(recipe)
            self._doorman.check(recipe.network)
        except ServiceError as error:
            return Availability(recipe, error.message, self._pools.free(recipe.name))
        return Availability(recipe, "", self._pools.free(recipe.name))

    async def prepare(self) -> None:
        """Builds what recipes with packages or setup commands need, so that no session waits for it."""
        for recipe in self._environments.recipes.values():
            if recipe.packages or recipe.setup:
                try:
                    await self._backends.hand(recipe.backend).prepare(recipe)
                except ServiceError as error:
                    _log.warning("environment not prepared", environment=recipe.name, message=error.message)

    async def tidy(self) -> None:
        """Removes what is left of sandboxes that have died or were never finished."""
        planted, living, environments = self._planting.planted(), set[str](), list[str]()
        for hand in self._backends.with_state():
            try:
                await hand.tidy()
                found = [info.labels for info in await hand.list()]
                living |= {labels.sandbox_id for labels in found}
                environments += [labels.environment for labels in found if not labels.pool]
            except ServiceError as error:
                _log.warning("not tidied", reason=error.reason, message=error.message)
                living |= planted  # it cannot be told which of them are gone
        counting.living(environments)
        await self._backends.prune()
        await self._planting.tidy(planted - living)
        await self._doorman.tidy(living)

    async def close(self) -> None:
        """Waits for the cancels that are under way, and lets go of doors."""
        await asyncio.gather(*self._killing)
        await self._doorman.close()


def _labels(sandbox_id: str, wanted: Wanted, recipe: Recipe, tenant: str | None) -> Labels:
    """Returns whose a sandbox shall be. One of a client's own that has a name stands outside of sessions."""
    labels = Labels(sandbox_id, recipe.name, time.time(), wanted.session_id, wanted.hand, wanted.request_id)
    owners_core.check_description(wanted.description)
    labels = replace(labels, description=wanted.description)
    if wanted.session_id:
        return labels
    if not (wanted.hand and tenant):
        return replace(labels, tenant=tenant or "")
    owners_core.check_name(wanted.hand)
    request = owners_core.request_of(tenant, wanted.hand)
    return replace(labels, tenant=tenant, standing=wanted.hand, request_id=request)


def _check_able(hand: Hand, load: Load) -> None:
    """Raises Refused (`CAPABILITY_MISSING`) for resources that a hand has no place for."""
    wanted = {FILES} if load.contents or load.mounts else set()
    wanted |= {REPOSITORIES} if load.repositories else set()
    missing = sorted(wanted - hand.capabilities)
    if missing:
        raise Refused("CAPABILITY_MISSING", f"hands of that kind have no {missing[0]}", capability=missing[0])
