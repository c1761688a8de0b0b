"""Two harnesses over one session: whoever runs, stops, dies or speaks at any point, by a list of choices."""

from __future__ import annotations

from dataclasses import replace

from services.harness.core import (
    Config,
    Configured,
    Confirmed,
    CustomAnswered,
    Interrupt,
    Message,
    Policy,
    SessionOver,
    ToolResult,
    ToolSpec,
)
from services.harness.usage import NO_BUDGETS, Budgets
from services.kit.errors import ServiceError
from services.session.core import Call, needs_harness
from tests.support.simulated_harness import SCHEMA, Harness, World
from tests.support.simulated_log import Choices, Draft, SimulatedLog, draft

MAX_STEPS = 4_000  # until it has to rest
HI = '[{"type":"text","text":"hi"}]'
CONFIG = Config(
    hands=("main", "box"),
    hand_specs=(b"1", b"2"),
    servers=("shop",),
    custom_tools=(ToolSpec("ask_user", "", SCHEMA), ToolSpec("ask_soon", "", SCHEMA, timeout=30.0)),
    policies=(Policy("shop__buy", "ASK"), Policy("rm", "DENY")),
)
_TIGHT = replace(CONFIG, budgets=Budgets(max_tool_calls=2, max_turns=3, max_tokens=200, max_wall_time=40.0))
_CONFIGS = (CONFIG, _TIGHT, replace(CONFIG, hand_specs=(b"3", b"2")), replace(CONFIG, policies=()))


class Simulation:
    """A session from its first message until nothing is left to do."""

    def __init__(self, numbers: list[int]) -> None:
        self.choices = Choices(numbers)
        self.log = SimulatedLog(CONFIG if self.choices.pick(3) < 2 else _TIGHT)
        self.world = World(self.log, self.choices)
        self.harnesses: list[Harness] = []
        self.timer: float | None = None
        self.spoken = 0
        self.client(draft("m0", Message(0, HI)))

    def client(self, said: Draft, emitter: str = "client") -> None:
        """Appends what a client or the session service says, if it is admitted."""
        try:
            self.log.acknowledged[said.event_id] = self.log.append([said], emitter)
        except ServiceError:
            pass

    def run(self) -> None:
        """Runs until there is nothing left to do. Raises AssertionError when that takes too long."""
        for _ in range(MAX_STEPS):
            roll = self.choices.pick(1 << 16)
            self._disturb(roll % 48)
            if not self._advance(roll // 48) and not self._soothe():
                return
        raise AssertionError("it never rests")

    def _advance(self, roll: int) -> bool:
        """One step of one harness, or a new one. False: nobody has anything to do."""
        alive = self.harnesses = [each for each in self.harnesses if not self._left(each)]
        due = self.timer is not None and self.timer <= self.log.now
        if not alive and (needs_harness(self.log.state) or due):
            if self.timer is not None and not due:
                self.log.now = self.timer
            self.timer = None
            self.harnesses.append(Harness(self.log, self.world))
        elif not alive and self.timer is not None:
            self.log.now = self.timer
        elif alive:
            alive[roll % len(alive)].step(self._turn() if self.choices.calm else roll // 2)
        else:
            return False
        return True

    def _turn(self) -> int:
        self.spoken += 1
        return self.spoken

    def _left(self, one: Harness) -> bool:
        if one.ended and one.wake_time is not None:
            self.timer = min(self.timer or one.wake_time, one.wake_time)
        return one.ended

    def _disturb(self, what: int) -> None:
        match what:
            case 1 | 2 if self.harnesses:  # killed: its claim ends, so somebody looks at the session again
                self.harnesses.pop(self.choices.pick(len(self.harnesses)))
                self.timer = self.log.now
            case 3 | 4 if len(self.harnesses) < 2:  # two are awake at once
                self.harnesses.append(Harness(self.log, self.world))
            case 5 | 6:
                self.client(draft(f"m{self._turn()}", Message(0, HI)))
            case 7:
                self.client(draft(f"i{self._turn()}", Interrupt(0)))
            case 8 | 9 | 10:
                self._decide(allowed=self.choices.pick(2) == 0, wrong=self.choices.pick(3) == 2)
            case 11 | 12 | 13:
                self._answer()
            case 14:
                config = _CONFIGS[self.choices.pick(len(_CONFIGS))]
                self.client(draft(f"c{self._turn()}", Configured(0, config)), "session")
            case 15:
                self.log.now += 50.0
            case 16 if self.choices.pick(8) == 7:
                self.client(draft("over", SessionOver(0)), "session")
            case _:
                pass

    def _decide(self, *, allowed: bool, wrong: bool = False) -> bool:
        asked = [call for call, step in self.log.state.calls.items() if step is Call.ASKED]
        for id in asked[:1]:
            seen = "another" if wrong else self.log.state.hashes[id]
            self.client(draft(f"d{self._turn()}", Confirmed(0, id, allowed, "", seen)))
        return bool(asked)

    def _answer(self) -> bool:
        asked = [call for call, step in self.log.state.calls.items() if step in (Call.REQUESTED, Call.ANSWERED)]
        for id in asked[:1]:
            said = CustomAnswered(0, id, ToolResult(f"answer {self._turn()}"))
            self.client(draft(f"a{self.spoken}", said))
        return any(self.log.state.calls[call] is Call.REQUESTED for call in asked)

    def _soothe(self) -> bool:
        """Everybody rests: a person decides, a client answers, a budget is raised. False: there is nothing to do."""
        if self.log.state.ended:
            return False
        if self.log.state.paused:
            config = replace(CONFIG, budgets=NO_BUDGETS)
            self.client(draft(f"c{self._turn()}", Configured(0, config)), "session")
            return True
        before = len(self.log.facts)
        self._decide(allowed=True)
        self._answer()
        return len(self.log.facts) > before
