"""Logs written by hand: events with positions and times, as the log would have them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from handmesh.diagnosis.evidence import Evidence, HarnessSeen, Probe, Process
from handmesh.session.v1 import config_pb2
from handmesh.session.v1 import event_pb2 as ev

BEGIN = 1_700_000_000.0
WELL = {name: Probe(True) for name in ("session", "harness", "sandbox", "vault_proxy")}
PROCESSES = {name: Process(f"{name}:1", BEGIN - 3_600.0) for name in WELL}


@dataclass
class Story:
    """A log that grows; each event comes some seconds after the one before."""

    now: float = BEGIN
    events: list[ev.Event] = field(default_factory=list)

    def then(self, seconds: float = 0.1, epoch: int = 0, delay: ev.EmitDelay | None = None, **kind: Any) -> Story:
        """Appends an event."""
        self.now += seconds
        event = ev.Event(position=len(self.events) + 1, epoch=epoch, delay=delay, **kind)
        event.emit_time.FromNanoseconds(int(self.now * 1e9))
        self.events.append(event)
        return self

    def begun(self, config: config_pb2.SessionConfig | None = None) -> Story:
        """Starts a session with a message, which a harness takes up."""
        self.then(session_started=ev.SessionStarted(config=config or config_pb2.SessionConfig()))
        self.then(message_received=ev.MessageReceived(content_json="[]"))
        return self.woke("one:1")

    def woke(
        self, instance: str, cause: ev.TakeoverCause.ValueType = ev.TAKEOVER_CAUSE_UNSPECIFIED, after: float = 0.1
    ) -> Story:
        """A harness takes it up."""
        epoch = len(self.events) + 1
        woke = ev.HarnessWoke(harness="messages", instance=instance, cause=cause)
        return self.then(after, epoch=epoch, harness_woke=woke)

    def replied(self, seconds: float = 1.0) -> Story:
        """The model answers."""
        return self.then(seconds, epoch=3, model_replied=ev.ModelReplied(stop_reason="end_turn", read_position=3))

    def ended(self, reason: ev.TurnEndReason.ValueType = ev.TURN_END_REASON_DONE) -> Story:
        """The turn ends."""
        return self.then(epoch=3, turn_ended=ev.TurnEnded(reason=reason))

    def evidence(self, status: str = "IDLE", **more: Any) -> Evidence:
        """What would be known of it now, in a mesh that is well."""
        known: dict[str, Any] = {
            "probes": WELL,
            "processes": PROCESSES,
            "harness": HarnessSeen(frozenset({"messages"})),
            "served": {"messages": 10},
            "harness_type": "messages",
        }
        return Evidence("sess_x", self.now + 0.5, self.events, status, **(known | more))
