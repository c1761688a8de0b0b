"""What may follow what: an action, the event by which it is done, and the actions that may be decided then. Pure.

The table says what the functions of `core` come to, for people: docs/brain.md draws its picture from it, and the
simulation's logs hold it against the functions. What clients do meanwhile is in the row of `Rest` only: it may come at
any time, and an interrupt always leads to `STOPPING`.
"""

from __future__ import annotations

from services.harness.turn.core import (
    Action,
    AskClient,
    AskConfirmation,
    AskModel,
    EndTurn,
    FinishCall,
    LookUpTools,
    Pause,
    Rest,
    RunCalls,
    Settle,
)

Actions = tuple[type[Action], ...]

CALLS: Actions = (FinishCall, AskConfirmation, AskClient, RunCalls)  # what brings the open calls on
ASKING: Actions = (LookUpTools, AskModel)  # what brings an answer
STOPPING: Actions = (Settle, FinishCall, EndTurn)  # what an interrupt leads to
TIME = "time"  # not an event: what was waited for is due

TRANSITIONS: dict[type[Action], dict[str, Actions]] = {
    LookUpTools: {"tools_offered": ASKING},
    AskModel: {
        "model_replied": (*CALLS, AskModel, EndTurn, Pause),
        "retry_scheduled": (Rest, AskModel),
        "context_compacted": (AskModel, Pause),
    },
    FinishCall: {"tool_finished": (*CALLS, *ASKING, EndTurn, Rest, Pause)},
    AskConfirmation: {"tool_confirmation_requested": (*CALLS, Rest, Pause)},
    AskClient: {"custom_tool_requested": (*CALLS, Rest, Pause)},
    RunCalls: {
        "sandbox_provisioned": (RunCalls,),
        "tool_started": (RunCalls,),
        "hand_detached": (RunCalls,),
        "tool_finished": (*CALLS, *ASKING, Rest, Pause),
    },
    Settle: {"tool_finished": STOPPING},
    Pause: {"budget_reached": (Rest,)},
    EndTurn: {"turn_ended": (*ASKING, Rest, Pause)},
    Rest: {
        "message_received": (*ASKING, Rest, Pause),
        "tool_confirmed": (*CALLS, Rest, Pause),
        "custom_tool_answered": (*CALLS, Rest),
        "interrupt_requested": (*STOPPING, Rest),
        "config_changed": (*CALLS, *ASKING, Rest, Pause),
        TIME: (FinishCall, AskModel),
    },
}
