"""What must hold after the demo. Pure: events and bytes in, findings out."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from handmesh.cli.lines import blocks_of, kind_of
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2


@dataclass(frozen=True)
class Finding:
    """One thing that must hold, and whether it does."""

    holds: bool
    text: str


def dense_positions(events: Sequence[event_pb2.Event]) -> Finding:
    """The log's positions are 1, 2, 3, ... without a gap."""
    holds = [event.position for event in events] == list(range(1, len(events) + 1))
    return Finding(holds, f"the log has positions 1 to {len(events)}, without a gap")


def one_result_per_call(events: Iterable[event_pb2.Event]) -> Finding:
    """Each tool call that the model made has exactly one result, and there are no others."""
    calls: list[str] = []
    results: Counter[str] = Counter()
    for event in events:
        match kind_of(event):
            case "model_replied":
                blocks = blocks_of(event.model_replied.content_json)
                calls += [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
            case "tool_finished":
                results[event.tool_finished.tool_use_id] += 1
    return Finding(results == Counter(calls), f"each of {len(calls)} tool calls has exactly one result")


def all_calls_went_well(events: Iterable[event_pb2.Event]) -> Finding:
    """No tool call failed."""
    finished = [event.tool_finished.result.outcome for event in events if kind_of(event) == "tool_finished"]
    good = finished.count(tool_pb2.TOOL_OUTCOME_OK)
    return Finding(0 < good == len(finished), f"{good} of {len(finished)} tool calls went well")


def turns_done(events: Iterable[event_pb2.Event], turns: int) -> Finding:
    """So many turns ended, and each because the model was done."""
    reasons = [event.turn_ended.reason for event in events if kind_of(event) == "turn_ended"]
    holds = reasons == [event_pb2.TURN_END_REASON_DONE] * turns
    return Finding(holds, f"{turns} turns ended, each with the model done")


def taken_over(events: Iterable[event_pb2.Event], tool_use_id: str) -> Finding:
    """A harness took the session up between the start of the call and its result."""
    started = woke = finished = 0
    for event in events:
        match kind_of(event):
            case "tool_started" if event.tool_started.tool_use_id == tool_use_id:
                started = started or event.position
            case "harness_woke" if started and not finished:
                woke = event.position
            case "tool_finished" if event.tool_finished.tool_use_id == tool_use_id:
                finished = event.position
    holds = 0 < started < woke < finished
    return Finding(holds, f"the call began at {started}, another harness woke at {woke}, the result came at {finished}")


def ran_once(output: str) -> Finding:
    """The slow job left one line: it ran once, though two harnesses had asked for it."""
    runs = output.count("run-")
    times = "exactly once" if runs == 1 else f"{runs} times"
    return Finding(runs == 1, f"the slow job ran {times}, though two harnesses had asked for it")


def same_executions(events: Iterable[event_pb2.Event], hand: str, execution_ids: Sequence[str]) -> Finding:
    """What the sandbox has run is what the log says was started in it, one execution each."""
    started = {
        event.tool_started.tool_use_id
        for event in events
        if kind_of(event) == "tool_started" and event.tool_started.hand == hand
    }
    holds = sorted(started) == sorted(execution_ids)
    return Finding(holds, f"the sandbox ran {len(execution_ids)} executions, and the log names the same {len(started)}")


def same_calls(events: Iterable[event_pb2.Event], server: str, served: Sequence[str]) -> Finding:
    """What an MCP server was asked is what the log says was sent to it, each call once and in order."""
    sent = [
        event.tool_started.name.partition("__")[2]
        for event in events
        if kind_of(event) == "tool_started" and event.tool_started.hand == server
    ]
    return Finding(sent == list(served), f"the server was called {len(served)} times, and the log names the same calls")


def secret_is_nowhere(secret: str, places: Mapping[str, bytes]) -> Finding:
    """The secret is in none of the places, in none of its spellings."""
    spelled = spellings(secret)
    found = sorted(name for name, content in places.items() if any(spelling in content for spelling in spelled))
    size = sum(map(len, places.values()))
    if found:
        return Finding(False, f"the token is in {', '.join(found)}")
    return Finding(
        True, f"the token is nowhere in {len(places)} files ({size / 1e6:.1f} MB), in {len(spelled)} spellings"
    )


def spellings(secret: str) -> set[bytes]:
    """Returns how a secret may be written: as it is, in hex, URL-encoded, and in base 64 within any other text."""
    raw = secret.encode()
    spelled = {raw, raw.hex().encode(), raw.hex().upper().encode(), quote(secret, safe="").encode()}
    spelled.add(quote(secret, safe="").replace("%2B", "%2b").replace("%2F", "%2f").replace("%3D", "%3d").encode())
    for before in range(3):  # base 64 depends on how many bytes stand before
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            spelled.add(_whole_characters(encode(b"\0" * before + raw), before, len(raw)))
    return spelled


def _whole_characters(encoded: bytes, before: int, length: int) -> bytes:
    """Returns the characters of base 64 that depend on the secret alone."""
    first = -(-before * 8 // 6)
    last = (before + length) * 8 // 6
    return encoded[first:last]
