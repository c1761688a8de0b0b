"""A session at its budgets, and decisions about its calls, as callers of the service see them."""

from __future__ import annotations

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import Budgets, SessionConfig
from tests.session.claiming import harness, make
from tests.session.running import Service, message, refusal, replied


async def test_a_paused_session_is_nobodys_until_its_budget_is_raised(service: Service, kind: str) -> None:
    """It says what it waits for and what it has cost; a message does not wake it, a new configuration does."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        offer = await one.offer()
        epoch, _ = await service.wake(session)
        answer = replied("t1", read=epoch)
        answer.model_replied.cost_micros = 42
        await service.emit(session, answer, epoch)
        reached = ev.BudgetReached(budget="max_tool_calls", limit=1, used=1)
        await service.emit(session, ev.Event(budget_reached=reached), epoch)
        assert not await one.release(offer)
        await service.emit(session, message("hurry"))
        await one.nothing()
        told = (await service.client.GetSession(pb.GetSessionRequest(session_id=session))).session
        assert (told.status, told.paused_budget) == (pb.SESSION_STATUS_PAUSED, "max_tool_calls")
        assert told.cost_micros == 42
        raised = SessionConfig(harness=kind, budgets=Budgets(max_tool_calls=2))
        answered = await service.client.UpdateSession(pb.UpdateSessionRequest(session_id=session, config=raised))
        assert (answered.session.status, answered.session.paused_budget) == (pb.SESSION_STATUS_RUNNING, "")
        assert (await one.offer()).session_id == session


async def test_an_approval_of_another_call_is_refused(service: Service, kind: str) -> None:
    """The hash of the request is what a decision is bound to; the call still waits for one after a refusal."""
    session = await make(service, kind, message())
    epoch, _ = await service.wake(session)
    await service.emit(session, replied("t1", read=epoch), epoch)
    asked = ev.ToolConfirmationRequested(tool_use_id="t1", call_hash="a" * 64)
    await service.emit(session, ev.Event(tool_confirmation_requested=asked), epoch)
    for seen in ("", "b" * 64):
        decision = ev.ToolConfirmed(tool_use_id="t1", allowed=True, call_hash=seen)
        refused = await refusal(service.emit(session, ev.Event(tool_confirmed=decision)))
        assert refused.reason == "CALL_HASH_MISMATCH"
    assert await service.status(session) == "WAITING"
    await service.emit(session, ev.Event(tool_confirmed=ev.ToolConfirmed(tool_use_id="t1", message="no")))
    assert await service.status(session) == "RUNNING"


async def test_a_harness_that_dies_before_it_says_when_is_followed_by_another(service: Service, kind: str) -> None:
    """A client's tool is handed out, and nobody has said yet when it is due: the session is offered once more."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        await one.offer()
        epoch, _ = await service.wake(session)
        await service.emit(session, replied("t1", read=epoch), epoch)
        asked = ev.CustomToolRequested(tool_use_id="t1", name="ask", input_json="{}")
        await service.emit(session, ev.Event(custom_tool_requested=asked), epoch)
    assert await service.status(session) == "WAITING"
    async with harness(service, kind) as other:
        offer = await other.offer()
        assert offer.session_id == session
        assert not await other.release(offer)
        await other.nothing()
