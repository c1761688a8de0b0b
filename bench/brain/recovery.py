"""kill -9 of a harness, in a model call and in a tool: how long until the session's log goes on, and what was lost.

With a second harness running the clock starts at the kill; with none, when a new one is started.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from bench.brain.model import Plan
from bench.brain.progress import telling
from bench.brain.shown import Shown
from bench.brain.watch import ANY_EVENT, Watch
from bench.brain.world import Brain, World, p50, start
from bench.figure import Figure

KILLS = {"ci": 4, "full": 50}
ALONE = {"ci": 1, "full": 10}
TOOL_SECONDS, MODEL_MS = 0.6, 400.0
NEXT_P50_SECONDS, NEXT_MAX_SECONDS, ALONE_SECONDS = 1.0, 2.0, 2.0
WAIT_SECONDS = 60.0
SETTLE_SECONDS = 0.05  # what was on its way before the kill has arrived


@dataclass
class Found:
    """What was seen after kills: seconds to the next event and to the turn's end, and what is wrong in the log."""

    next_event: dict[str, list[float]] = field(default_factory=lambda: {"model": [], "tool": []})
    answer: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # what was done, and who took up
    wrong: Counter[str] = field(default_factory=Counter)
    warm: set[str] = field(default_factory=set)  # harnesses that have loaded the model's library


async def measure(size: str) -> AsyncIterator[Any]:
    """Kills again and again, in a model call and in a tool in turns."""
    async with start(linger="0") as world:  # each turn is taken up anew, so that its log says which harness to kill
        await world.mesh.kill("harness")
        brains = [await world.brain(), await world.brain()]
        watches = {"model": await world.session(), "tool": await world.session()}
        await world.turn(watches["tool"], Plan("true"))
        pair, alone = Found(), Found()
        for number in telling("kills with a second harness", range(KILLS[size])):
            doing = ("model", "tool")[number % 2]
            killed = await _kill(world, brains, watches[doing], doing, number, pair)
            brains.remove(killed)
            brains.append(await world.brain())
        await brains.pop().process.stop()
        for number in telling("kills with no other", range(KILLS[size], KILLS[size] + ALONE[size])):
            doing = ("model", "tool")[number % 2]
            await _kill(world, brains, watches[doing], doing, number, alone, again=True)
    every = tuple(pair.next_event["model"] + pair.next_event["tool"])
    each = {f"in_a_{doing}_p50": round(p50(taken), 3) for doing, taken in pair.next_event.items()}
    yield Figure("kill -9 of a harness to the next event", "s", every, NEXT_P50_SECONDS, more=each)
    yield Figure("kill -9 of a harness to the next event, the longest", "s", (max(every),), NEXT_MAX_SECONDS)
    for doing, taken in sorted(pair.answer.items()):
        values = {"p50_s": round(p50(taken), 3), "max_s": round(max(taken), 3), "kills": len(taken)}
        yield Shown(f"kill -9 in a {doing}, to the turn's end", values)
    lone = tuple(alone.next_event["model"] + alone.next_event["tool"])
    yield Figure("start of a harness to the next event, with no other", "s", (max(lone),), ALONE_SECONDS)
    wrong = pair.wrong + alone.wrong
    yield Figure(
        "turns with an event lost or doubled, or a tool not run once", "turns", (wrong.total(),), 0.0, more=wrong
    )


async def _kill(
    world: World, brains: list[Brain], watch: Watch, doing: str, number: int, found: Found, *, again: bool = False
) -> Brain:
    """Kills the harness that works on a turn. With `again` a new one is started then, and takes its place."""
    plan = Plan(number=number, delay_ms=MODEL_MS)
    if doing == "tool":
        plan = Plan(f"echo {number} >> ran; sleep {TOOL_SECONDS}; cat ran", number=number)
    begun = len(watch.seen)
    await watch.session.send(plan.text)
    _, woke = await watch.until("harness_woke", begun, WAIT_SECONDS)
    if doing == "tool":
        await watch.until("tool_started", begun, WAIT_SECONDS)
    else:
        while not any(row[0] == number for row in await world.seen()):
            await asyncio.sleep(0.01)
    await asyncio.sleep(SETTLE_SECONDS)
    pid = int(woke.harness_woke.instance.rpartition(":")[2])
    victim = next(brain for brain in brains if brain.process.pid == pid)
    at, clock = len(watch.seen), time.monotonic_ns()
    await victim.process.kill()
    if again:
        brains.remove(victim)
        clock = time.monotonic_ns()
        brains.append(await world.brain())
    came, _ = await watch.until(ANY_EVENT, at, WAIT_SECONDS)
    found.next_event[doing].append((came - clock) / 1e9)
    ended, _ = await watch.until("turn_ended", at, WAIT_SECONDS)
    taker = next(said.harness_woke.instance for _, kind, said in watch.seen[at:] if kind == "harness_woke")
    kind = "that has had turns" if taker in found.warm else "at its first turn"
    left = f"{MODEL_MS / 1000:g} s" if doing == "model" else f"{TOOL_SECONDS:g} s"
    found.answer[f"{doing} of {left}, taken up by a harness {kind}"].append((ended - clock) / 1e9)
    found.warm |= {taker, woke.harness_woke.instance}
    found.wrong.update(await _wrong(world, watch, begun, doing, number))
    return victim


async def _wrong(world: World, watch: Watch, begun: int, doing: str, number: int) -> list[str]:
    """Looks at what a turn has left in the log and in the world; names what should not be."""
    log = [event async for event in watch.session.events()]
    wrong = []
    if [event.position for event in log] != list(range(1, len(log) + 1)):
        wrong.append("positions")
    if len({event.event_id for event in log}) != len(log):
        wrong.append("event twice")
    if [event.event_id for event in watch.events()] != [event.event_id for event in log]:
        wrong.append("watcher saw another log")
    seen = Counter(kind for _, kind, _ in watch.seen[begun:])
    tools = 1 if doing == "tool" else 0
    expected = {"message_received": 1, "model_replied": 1 + tools, "tool_started": tools, "tool_finished": tools}
    wrong += [f"{kind}: {seen[kind]}" for kind, count in expected.items() if seen[kind] != count]
    if world.runs(str(number)) != tools:
        wrong.append(f"ran {world.runs(str(number))} times")
    return wrong
