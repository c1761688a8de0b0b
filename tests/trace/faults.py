"""Eighteen faults, three of each part, each planted in a real process or on a real link; and what is none.

A planting takes the ground, does the harm, and returns what `handmesh trace` says of the session that it hurt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from handmesh.client import Session
from handmesh.diagnosis.verdict import Diagnosis
from handmesh.session.v1 import config_pb2
from tests.trace.ground import CANARY, Ground, kill_sandbox_of

Plant = Callable[[Ground], Awaitable[Diagnosis]]


@dataclass(frozen=True)
class Fault:
    """What is planted, and what has to be said of it."""

    part: str
    code: str
    state: str
    plant: Plant


def _found(part: str) -> Callable[[Diagnosis], bool]:
    return lambda seen: seen.verdict.part == part


async def _over(ground: Ground, session: Session, within: float = 40.0) -> Diagnosis:
    async with asyncio.timeout(within):
        await ground.logged(session, "turn_ended")
    return await ground.diagnosis(session)


# --- model ---
async def overloaded(ground: Ground) -> Diagnosis:
    """The model's API answers that it has too much to do, again and again."""
    return await _retried(ground, "fault overloaded")


async def truncated(ground: Ground) -> Diagnosis:
    """Every answer's stream ends in its middle."""
    return await _retried(ground, "fault truncated")


async def stalled(ground: Ground) -> Diagnosis:
    """Every answer's stream stays open and says nothing more."""
    return await _retried(ground, "fault stalled")


async def _retried(ground: Ground, text: str) -> Diagnosis:
    session = await ground.session(text, no_hands=True)
    await ground.logged(session, "retry_scheduled")
    try:
        return await ground.diagnosis(session)
    finally:
        await session.end()


# --- hand ---
async def sandbox_killed(ground: Ground) -> Diagnosis:
    """A sandbox's processes are killed under a running tool."""
    session = await ground.session("fault killed")
    await ground.logged(session, "tool_started")
    async with asyncio.timeout(30):
        while True:
            try:
                await asyncio.to_thread(kill_sandbox_of, "314.15")
                break
            except AssertionError:
                await asyncio.sleep(0.2)
    return await _over(ground, session)


async def tool_timeout(ground: Ground) -> Diagnosis:
    """A tool runs into its environment's time limit."""
    spec = config_pb2.HandSpec(environment="quick", description=f"{CANARY} description")
    session = await ground.session("fault timeout", hands={f"hand-{CANARY}": spec})
    return await _over(ground, session)


async def sandbox_service_killed(ground: Ground) -> Diagnosis:
    """The sandbox service dies under a running tool, and nobody starts it again."""
    session = await ground.session("a while")
    await ground.logged(session, "tool_started")
    async with ground.killed("sandbox"):
        return await ground.until(session, _found("hand"))


# --- proxy ---
async def server_down(ground: Ground) -> Diagnosis:
    """The session's MCP server is not there."""
    session = await ground.session("hello", **ground.servers(url=f"http://127.0.0.1:9/{CANARY}/mcp"))
    return await _over(ground, session)


async def credential_refused(ground: Ground) -> Diagnosis:
    """The MCP server answers 401 to the credential that the vault has for it."""
    session = await ground.session("hello", **ground.servers(vault_id=ground.wrong_vault_id))
    return await _over(ground, session)


async def proxy_killed(ground: Ground) -> Diagnosis:
    """The vault proxy dies under a call of an MCP server's tool."""
    session = await ground.session("slow shop", **ground.servers())
    await ground.logged(session, "tool_started")
    async with ground.killed("vault_proxy"):
        return await _over(ground, session)


# --- harness ---
async def harness_killed(ground: Ground) -> Diagnosis:
    """The only harness dies while the model is asked, and nobody starts it again."""
    session = await ground.session("slowly", no_hands=True)
    await ground.logged(session, "harness_woke")
    async with ground.killed("harness"):
        return await ground.until(session, _found("harness"))


async def harness_stopped(ground: Ground) -> Diagnosis:
    """The only harness stands still."""
    session = await ground.session("slowly", no_hands=True)
    await ground.logged(session, "harness_woke")
    async with ground.stopped("harness"):
        return await ground.diagnosis(session)


async def harness_replaced(ground: Ground) -> Diagnosis:
    """A harness dies in a turn, and another one ends the turn."""
    session = await ground.session("slowly", no_hands=True)
    await ground.logged(session, "harness_woke")
    async with ground.killed("harness"):
        pass
    return await _over(ground, session)


# --- session ---
async def session_killed(ground: Ground) -> Diagnosis:
    """The session service dies, and nobody starts it again."""
    session = await ground.session("slowly", no_hands=True)
    await ground.logged(session, "harness_woke")
    async with ground.killed("session"):
        return await ground.until(session, _found("session"))


async def session_stopped(ground: Ground) -> Diagnosis:
    """The session service stands still."""
    session = await ground.session("slowly", no_hands=True)
    await ground.logged(session, "harness_woke")
    async with ground.stopped("session"):
        return await ground.diagnosis(session)


async def store_killed(ground: Ground) -> Diagnosis:
    """The log's store dies while the model is asked, and comes back later: the answer had to wait for it."""
    session = await ground.session("slowly", no_hands=True)
    await ground.logged(session, "harness_woke")
    async with ground.killed("nats"):
        return await ground.until(session, _found("session"))


# --- network ---
async def hand_cut_off(ground: Ground) -> Diagnosis:
    """The link from the harness to the sandbox service is cut under a tool; you reach both."""
    session = await ground.session("a while")
    await ground.logged(session, "tool_started")
    async with ground.cut("harness", "sandbox"):
        return await ground.until(session, _found("network"))


async def proxy_cut_off(ground: Ground) -> Diagnosis:
    """The link from the harness to the vault proxy is cut under a call; you reach both."""
    session = await ground.session("slow shop", **ground.servers())
    await ground.logged(session, "tool_started")
    async with ground.cut("harness", "vault_proxy"):
        return await _over(ground, session)


async def session_cut_off(ground: Ground) -> Diagnosis:
    """The link from the harness to the session service is cut while the model is asked; you reach both."""
    session = await ground.session("slowly", no_hands=True)
    await ground.logged(session, "harness_woke")
    async with ground.cut("harness", "session"):
        return await ground.until(session, _found("network"))


# --- what is no fault ---
async def done(ground: Ground) -> Diagnosis:
    """A turn that went well."""
    return await _over(ground, await ground.session("hello", no_hands=True))


async def tool_failed(ground: Ground) -> Diagnosis:
    """A command that leaves with an exit code."""
    return await _over(ground, await ground.session("near exit"))


async def tool_denied(ground: Ground) -> Diagnosis:
    """A call that a policy says no to."""
    deny = config_pb2.ToolPolicy(pattern="*", action=config_pb2.TOOL_POLICY_ACTION_DENY)
    return await _over(ground, await ground.session("near exit", tool_policies=[deny]))


async def model_refused(ground: Ground) -> Diagnosis:
    """A model that will not answer."""
    return await _over(ground, await ground.session("near refusal", no_hands=True))


async def server_denied(ground: Ground) -> Diagnosis:
    """An MCP server at an address that a rule says no to: no request was sent."""
    return await _over(ground, await ground.session("hello", **ground.servers(url="http://10.1.2.3/mcp")))


async def person_asked(ground: Ground) -> Diagnosis:
    """A call that waits for a person."""
    ask = config_pb2.ToolPolicy(pattern="*", action=config_pb2.TOOL_POLICY_ACTION_ASK)
    session = await ground.session("near approval", tool_policies=[ask])
    await ground.logged(session, "tool_confirmation_requested")
    return await ground.until(session, lambda seen: seen.evidence.status == "WAITING")


async def client_asked(ground: Ground) -> Diagnosis:
    """A call that waits for a client."""
    tool = config_pb2.CustomTool(name="canary_tool", description=CANARY, input_schema_json='{"type": "object"}')
    session = await ground.session("near client", no_hands=True, custom_tools=[tool])
    await ground.logged(session, "custom_tool_requested")
    return await ground.until(session, lambda seen: seen.evidence.status == "WAITING")


async def at_work(ground: Ground) -> Diagnosis:
    """A model that takes its time."""
    session = await ground.session("slowly", no_hands=True)
    await ground.logged(session, "harness_woke")
    return await ground.diagnosis(session)


async def rolled_over(ground: Ground) -> Diagnosis:
    """A harness that is asked to leave in the middle of a turn, and another one that ends it: a rolling restart."""
    session = await ground.session("a while")
    await ground.logged(session, "tool_started")
    await ground.mesh.restart("harness")
    await ground.whole()
    return await _over(ground, session)


GENTLE = (overloaded, truncated, stalled, sandbox_killed, tool_timeout, server_down, credential_refused)
"""What hurts nobody but its own session: these are planted side by side."""

FAULTS = {
    fault.plant.__name__: fault
    for fault in (
        Fault("model", "model-overloaded", "standing", overloaded),
        Fault("model", "model-broke-off", "standing", truncated),
        Fault("model", "model-silent", "standing", stalled),
        Fault("hand", "hand-gone", "overcome", sandbox_killed),
        Fault("hand", "hand-timeout", "overcome", tool_timeout),
        Fault("hand", "hand-away", "standing", sandbox_service_killed),
        Fault("proxy", "proxy-server", "overcome", server_down),
        Fault("proxy", "proxy-credential", "overcome", credential_refused),
        Fault("proxy", "proxy-away", "overcome", proxy_killed),
        Fault("harness", "harness-away", "standing", harness_killed),
        Fault("harness", "harness-stalled", "standing", harness_stopped),
        Fault("harness", "harness-lost", "overcome", harness_replaced),
        Fault("session", "session-away", "standing", session_killed),
        Fault("session", "session-stalled", "standing", session_stopped),
        Fault("session", "session-store", "standing", store_killed),
        Fault("network", "network-between", "standing", hand_cut_off),
        Fault("network", "network-between", "overcome", proxy_cut_off),
        Fault("network", "network-between", "standing", session_cut_off),
    )
}

HEALTHY = {
    fault.plant.__name__: fault
    for fault in (
        Fault("", "waiting", "waiting", done),
        Fault("", "waiting", "waiting", tool_failed),
        Fault("", "waiting", "waiting", tool_denied),
        Fault("", "waiting", "waiting", model_refused),
        Fault("", "waiting", "waiting", server_denied),
        Fault("", "waiting", "waiting", person_asked),
        Fault("", "waiting", "waiting", client_asked),
        Fault("", "working", "none", at_work),
        Fault("", "waiting", "waiting", rolled_over),
    )
}
