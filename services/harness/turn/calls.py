"""Looks up tools, provisions hands, runs calls and settles them: the effects around one reply's tool calls.

A tool that fails is a value for the model. When a hand fails, the model is told so in our own words, and the log has
an `ErrorRaised` that says which part it was.

A little longer than a module should be: what is counted and traced of a call is said where it is made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from handmesh.session.v1.event_pb2 import Event
from services.harness import counting
from services.harness.adapters import codec
from services.harness.condition import SANDBOX, SESSION, VAULT_PROXY
from services.harness.core import MESH, ToolResult
from services.harness.journal import Journal
from services.harness.mesh.calls import MeshCalls
from services.harness.mesh.tool import NotYet
from services.harness.ports import Ports, Sandbox, Toolbox
from services.harness.turn import traced
from services.harness.turn.ahead import with_what_follows
from services.harness.turn.core import LookUpTools, RunCall
from services.harness.turn.log_views import LogViews
from services.harness.turn.offers import offered, reading
from services.harness.turn.outage import Outage
from services.harness.turn.output import Follow, show
from services.harness.turn.policies import route_of, routes_of
from services.harness.turn.state import Call, State
from services.harness.turn.traits import Traits
from services.harness.turn.waits import Waits
from services.kit import failpoints
from services.kit.errors import Conflict, Denied, Gone, Invalid, Refused, ServiceError, Unavailable

CANCEL_SECONDS = 5.0  # how long a cancelled call may take to say what it had said
PAUSE_SECONDS = 0.25
COMING_SECONDS = 5.0  # within which the log says that a standing hand was attached
_SERVICES = {"hand": SANDBOX, "vault_proxy": VAULT_PROXY, "session": SESSION}
_AWAY = ("SANDBOX_UNAVAILABLE", "SESSION_UNAVAILABLE")  # the services that a provisioning needs, for a moment


class Calls:
    """What a turn does with hands and servers. `state` returns the state as it is now."""

    def __init__(self, journal: Journal, ports: Ports, state: Callable[[], State], traits: Traits) -> None:
        self._journal = journal
        self._ports = ports
        self._mesh = MeshCalls(ports.mesh)
        self._views = LogViews(journal.log, ports.hands)
        self._state = state
        self._traits = traits
        self._sent: set[str] = set()  # calls that this run has sent
        self._left: set[str] = set()  # sandboxes that went to other sessions
        self.waits = Waits()

    async def look_up(self, wanted: LookUpTools) -> None:
        """Asks for tools and says what there is. A hand or server that fails offers none in this turn."""
        epoch, head = self._journal.epoch, self._state().head
        asked = [self._hand(hand, epoch, head) for hand in wanted.hands]
        if wanted.servers:
            asked.append(self._servers(wanted.servers, epoch, head))
        for events in await asyncio.gather(*asked):
            for event in events:
                await self._journal.say_while(self._is_mine, event)

    def _is_mine(self) -> bool:
        """Tells whether the session is still of this type: what it is offered as another one is for that to say."""
        return self._state().config.harness == self._traits.name

    async def _hand(self, hand: str, epoch: int, head: int) -> list[Event]:
        config = self._state().config
        if hand == MESH:
            return [codec.offered(epoch, head, MESH, self._mesh.offered(config))]
        if hand not in self._state().offering:
            return []  # it has left since that was decided
        try:
            toolbox = await self._toolbox(hand)
        except ServiceError as problem:
            return [codec.offered(epoch, head, hand, (), failed=True), self._raised("hand", hand, problem)]
        several = len(config.hands) > 1 or hand not in config.hands
        specs, left_out = offered(hand, several, toolbox)
        events = [codec.offered(epoch, head, hand, specs)]
        for number, name in enumerate(left_out):
            said = f"{hand}: its tool {name[:200]!r} was left out: its name is taken, or the model's API refuses it"
            about = f"{hand}-{number}"
            events.append(codec.error_raised(epoch, head, "hand", "TOOL_SCHEMA_INVALID", said, False, about))
        return events

    async def _toolbox(self, hand: str) -> Toolbox:
        state, under = self._state(), self._journal.standing
        joined = state.attached.get(hand)
        if joined is None or hand in state.config.hands:
            return await self._ports.hands.tools(state.config.hand_specs[state.config.hands.index(hand)], under)
        toolbox = await self._ports.hands.tools(b"", under, joined.sandbox_id)
        toolbox = replace(toolbox, description=joined.description or toolbox.description)
        return reading(toolbox) if joined.read_only else toolbox

    async def _servers(self, wanted: tuple[str, ...], epoch: int, head: int) -> list[Event]:
        try:
            tools, problems = await self._ports.servers.tools(self._journal.grant)
        except ServiceError as problem:
            failed = [codec.offered(epoch, head, server, (), failed=True) for server in wanted]
            return [*failed, self._raised("vault_proxy", "servers", problem)]
        down = {server for server, tool, *_ in problems if not tool}
        events = []
        for server in wanted:
            mine = [tool for tool in tools if tool.name.partition("__")[0] == server]
            events.append(codec.offered(epoch, head, server, mine, failed=server in down))
        for number, (server, _, reason, message) in enumerate(problems):
            said = f"{server}: {message}"
            events.append(codec.error_raised(epoch, head, "vault_proxy", reason, said, True, f"{server}-{number}"))
        return events

    def _raised(self, part: str, about: str, problem: ServiceError, since: float | None = None) -> Event:
        epoch, head = self._journal.epoch, self._state().head
        again = isinstance(problem, Unavailable)
        silent = "" if problem.answered else _SERVICES[part]
        said = (problem.reason, problem.message, again, about)
        return codec.error_raised(epoch, head, part, *said, silent_service=silent, since=since)

    async def provision(self, hand: str) -> None:
        """Makes a hand's sandbox. When that fails, the calls that wait for it are told so."""
        state = self._state()
        spec = state.config.hand_specs[state.config.hands.index(hand)]
        generation = state.generations.get(hand, 0) + 1
        try:
            sandbox = await self._made(hand, spec, generation)
        except Conflict:
            raise  # fenced: the journal will say so
        except ServiceError as problem:
            since = self._journal.condition.passed(SANDBOX)
            await self._journal.say(self._raised("hand", hand, problem, since))
            for call in self._waiting_for(hand):
                told = ToolResult(f"The hand {hand} could not be provisioned: {problem.message}", "GONE")
                await self._journal.say(codec.call_finished(call.call.id, told))
        else:
            failpoints.hit("harness.sandbox_made")
            if sandbox.attached and await self._came(hand):
                return
            event = codec.provisioned(
                hand, sandbox.sandbox_id, sandbox.environment, generation, sandbox.unenforced_limits
            )
            epoch, now = self._journal.epoch, self._ports.now()
            await self._journal.say_with(*with_what_follows(self._state(), event, epoch, now, self._traits))

    async def _came(self, hand: str) -> bool:
        """Waits until the log says that a standing hand is attached; False when it does not say so again."""
        try:
            async with asyncio.timeout(COMING_SECONDS):
                while hand not in self._state().sandboxes:
                    await self._journal.wait(self._state().head)
        except TimeoutError:
            return False
        return True

    async def _made(self, hand: str, spec: bytes, generation: int) -> Sandbox:
        """Asks for a sandbox: again while the sandbox service is away, which finds by the request what it has begun."""
        session_id, under = self._journal.log.session_id, self._journal.standing
        outage = Outage(self._ports.now)
        while True:
            outage.ask()
            try:
                made = await self._ports.hands.provision(session_id, hand, spec, generation, under)
            except Unavailable as problem:
                self._journal.condition.failed(SANDBOX, problem)
                if problem.reason not in _AWAY or outage.too_long():
                    raise
            else:
                self._journal.condition.passed(SANDBOX)
                return made
            await asyncio.sleep(PAUSE_SECONDS)

    def _waiting_for(self, hand: str) -> list[Call]:
        names = {name for name, route in routes_of(self._state()).items() if route[0] == hand}
        calls = self._state().calls.values()
        return [it for it in calls if it.result is None and it.started is None and it.call.name in names]

    async def run(self, run: RunCall) -> None:
        """Says that a call starts, sends it, and says what came back."""
        with traced.tool(run) as span:
            await self._run(run, span)

    async def _run(self, run: RunCall, span: traced.ToolSpan) -> None:
        if run.started is None:
            await self._journal.say(codec.call_started(run.call, run.hand, run.sandbox_id))
        failpoints.hit("harness.call_started")
        if run.sandbox_id:
            await self._refresh_log(run.hand, run.sandbox_id)
        head, began = self._state().head, time.perf_counter()  # what comes while it runs may be what it waits for
        try:
            result = await (self._of_mesh(run) if run.hand == MESH else self._shown(run))
        except NotYet as later:
            self.waits.note(run.call.id, head, later.until)
            return
        span.came(result)
        failpoints.hit("harness.result_returned")
        kind = counting.kind_of(run.tool, run.hand == MESH, bool(run.sandbox_id))
        counting.finished(kind, result.outcome, time.perf_counter() - began)
        lost = result.outcome == "GONE" and run.sandbox_id not in self._left
        if lost and run.sandbox_id:  # several calls may find that out: it is said once
            await self._journal.say(codec.detached(run.hand, run.sandbox_id, "the sandbox is gone"))
        await self._journal.say(codec.call_finished(run.call.id, *await self._journal.shelf.fitted(result)))
        failpoints.hit("harness.result_stored")

    async def _refresh_log(self, hand: str, sandbox_id: str) -> None:
        config, under = self._state().config, self._journal.standing
        if (problem := await self._views.refresh(config, hand, sandbox_id, under)) is not None:
            await self._journal.say(self._raised("hand", f"log-{hand}", problem))

    async def _shown(self, run: RunCall) -> ToolResult:
        showing = asyncio.create_task(show(self._journal, run.call.id, self._following(run)), name="show")
        try:
            return await self._execute(run)
        finally:
            showing.cancel()
            self._journal.condition.passed(SANDBOX if run.sandbox_id else VAULT_PROXY)  # this call waits no more

    async def _of_mesh(self, run: RunCall) -> ToolResult:
        """Runs a tool of the mesh's own, again while what it needs is away: that changes nothing that was done."""
        journal, outage = self._journal, Outage(self._ports.now)
        since = run.started.time if run.started is not None else self._ports.now()
        while True:
            outage.ask()
            try:
                config, standing = self._state().config, journal.standing
                return await self._mesh.execute(run.call, journal.log, config, standing, since, may_rest=True)
            except Conflict:
                raise  # fenced: the journal will say so
            except Unavailable as problem:
                journal.condition.failed(SESSION, problem)
                if outage.too_long():
                    return await self._lost(run, problem)
            except ServiceError as problem:
                return await self._lost(run, problem)
            await asyncio.sleep(PAUSE_SECONDS)

    def _following(self, run: RunCall) -> Follow:
        if run.sandbox_id:
            return lambda offset: self._ports.hands.follow(run.sandbox_id, run.call.id, offset)
        return lambda offset: self._ports.servers.follow(self._journal.grant, run.call.id, offset)

    async def _execute(self, run: RunCall) -> ToolResult:
        outage = Outage(self._ports.now)
        while True:
            outage.ask()
            try:
                return await self._send(run)
            except Gone as problem:
                if problem.reason == "EXECUTION_UNKNOWN":
                    return ToolResult("Nobody can tell whether this call ran: it was not run again.", "UNKNOWN")
                return ToolResult("The sandbox is gone, with what was in it. The next call gets a new one.", "GONE")
            except (Invalid, Denied) as problem:
                return ToolResult(problem.message, "TOOL_ERROR")
            except Refused as problem:
                if problem.reason != "HAND_TRANSFERRED":
                    return await self._lost(run, problem)
                self._left.add(run.sandbox_id)
                return ToolResult(f"This call did not run: {problem.message}.", "GONE")
            except Conflict:
                raise
            except Unavailable as problem:
                self._journal.condition.failed(SANDBOX if run.sandbox_id else VAULT_PROXY, problem)
                # A hand keeps a call by its id, so it is asked again; a server's call may have run: it is not.
                if run.sandbox_id and not outage.too_long():
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                return await self._lost(run, problem)
            except ServiceError as problem:
                return await self._lost(run, problem)

    async def _send(self, run: RunCall) -> ToolResult:
        if run.sandbox_id:
            return await self._ports.hands.execute(
                run.sandbox_id, run.tool, run.call.input, run.call.id, self._journal.standing
            )
        first = run.call.id not in self._sent and (run.started is None or run.started.epoch == self._journal.epoch)
        self._sent.add(run.call.id)
        again = not (first or run.spec.idempotent or run.spec.read_only)
        return await self._ports.servers.execute(
            self._journal.grant, run.tool, run.call.input, run.call.id, again, self._state().offers[run.hand].position
        )

    async def _lost(self, run: RunCall, problem: ServiceError) -> ToolResult:
        part = "session" if run.hand == MESH else "hand" if run.sandbox_id else "vault_proxy"
        since = self._journal.condition.passed(_SERVICES[part])
        await self._journal.say(self._raised(part, run.call.id, problem, since))
        return ToolResult(f"The call failed before it could answer: {problem.message}", "UNKNOWN")

    async def settle(self, calls: tuple[Call, ...]) -> None:
        """Cancels calls after an interrupt and says what each had said."""
        results = await asyncio.gather(*(self._interrupted(call) for call in calls))
        for call, result in zip(calls, results, strict=True):
            await self._journal.say(codec.call_finished(call.call.id, *await self._journal.shelf.fitted(result)))

    async def _interrupted(self, call: Call) -> ToolResult:
        told = ToolResult("The turn was interrupted before this call ended.", "INTERRUPTED")
        started = call.started
        assert started is not None, "only what a hand has is cancelled"
        if started.hand == MESH:
            return told  # it ran here, and does so no more
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                if not started.sandbox_id:
                    await self._ports.servers.cancel(self._journal.grant, call.call.id)
                    return told
                await self._ports.hands.cancel(started.sandbox_id, call.call.id, self._journal.standing)
                route = route_of(call, routes_of(self._state()))
                if route is None:
                    return told
                return await self._ports.hands.execute(
                    started.sandbox_id, route[1], call.call.input, call.call.id, self._journal.standing
                )
        except (TimeoutError, ServiceError):
            return told
