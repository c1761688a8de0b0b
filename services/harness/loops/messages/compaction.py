"""When a conversation is summarised, what for, and what the summary says. Pure.

A summary stands for everything before a position. At the beginning of a turn that is what was said before the turn's
message; within a turn, between two questions to the model, everything there is. It is asked for once: again only when
the model has answered something since, so a window that is too small for a summary too ends in an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from services.harness.blocks import spelled, text_block
from services.harness.core import Message, Replied, Said
from services.harness.loops.messages import tokens
from services.harness.loops.messages.policy import Policy
from services.harness.loops.messages.told import cause, conversation
from services.harness.turn.state import State

FULL = "CONTEXT_FULL"
FRESH = "; what was said before is in a summary already"
TASK_CHARACTERS = 20_000  # of the messages that are being worked on
ASKING = """\
[From the harness, not from the user: the context window of this conversation is nearly full. Write a summary of \
everything above; it will take its place. Say, in this order: what the user wants, in their own words where they \
matter; what was decided and why; what was done and found, with names, paths, numbers and identifiers exactly as they \
are; what did not work; the state of things now; what is to be done next. Leave out what no longer matters. Call no \
tool. Answer with the summary alone.]"""
RESETTING = """\
[From the harness, not from the user: another assistant with an empty context window goes on with this work, and knows \
nothing but what you write now. Write its hand-over note. Say, in this order: what the user wants, in their own words \
where they matter; what was decided and why; what is done and how that was checked; what did not work; the state of \
things now, with names, paths, numbers and identifiers exactly as they are; the next steps. There is no hurry: the one \
who goes on has room. Call no tool. Answer with the note alone.]"""
SUMMARY = "[What was said before, up to position {end} of the session's log, in a summary:]"
NOTE = "[You go on with work that was begun before. The hand-over note:]"
TASK = "[The message that is being worked on, as it was written:]"
GO_ON = "[End of it. Go on from there.]"


def size_of(state: State) -> int:
    """Returns about how many tokens the next request has: as the API counted the last one, and what came since."""
    reply = state.reply
    if reply is None:
        return 0
    new = [fact for fact in _since(state, reply) if fact is not reply]
    return reply.usage.prompt + reply.usage.output + tokens.of_facts(new)


def _since(state: State, reply: Replied) -> list[Said]:
    found: list[Said] = []
    link = state.conversation
    while link is not None and link.fact.position > reply.read:
        found.append(link.fact)
        link = link.before
    return found


def possible(state: State, policy: Policy) -> bool:
    """Tells whether summarising may help: the policy allows it, and the model has answered since the last time."""
    if policy.mode == "off" or policy.ignore or state.reply is None:
        return False
    return not is_fresh(state)


def is_fresh(state: State) -> bool:
    """Tells whether the model has not answered since the conversation was summarised."""
    compacted, reply = state.compacted, state.reply
    return compacted is not None and (reply is None or reply.position < compacted.position)


def due(state: State, policy: Policy) -> bool:
    """Tells whether the conversation is to be summarised before the model is asked. Never within an answer of several
    parts: what the API has begun there it has to end."""
    paused = state.reply is not None and state.reply.stop_reason == "pause_turn"
    return possible(state, policy) and (_is_called_for(state) or (size_of(state) >= policy.at and not paused))


def _is_called_for(state: State) -> bool:
    return state.retry is not None and state.retry.reason == FULL


def end_of(state: State) -> int:
    """Returns the position before which everything is to be summarised."""
    if state.used.model_calls:
        return state.head + 1
    open_messages = [
        it.position for it in conversation(state) if isinstance(it, Message) and it.position > state.settled
    ]
    return min(open_messages, default=state.head + 1)


def asked(policy: Policy) -> str:
    """Returns the words that ask for a summary."""
    return policy.instructions or (RESETTING if policy.mode == "reset" else ASKING)


def content_of(summary: str, state: State, end: int, policy: Policy) -> str:
    """Returns the blocks that stand for what was said, as JSON text, with the messages that are not answered yet."""
    opening = NOTE if policy.mode == "reset" else SUMMARY.format(end=end - 1)
    texts = [opening, summary]
    unanswered = [
        fact
        for fact in reversed(conversation(state))
        if isinstance(fact, Message) and fact.position > state.settled and cause(fact) < (end, 0)
    ]
    if unanswered:
        said = _shortened([text for fact in unanswered for text in _texts(fact.content)])
        texts += [TASK, said or "(no text)"]
    return spelled([text_block(text) for text in (*texts, GO_ON)])


def _texts(content: str) -> list[str]:
    said = [str(block.get("text", "")) for block in json.loads(content) if block.get("type") == "text"]
    return [text for text in said if text.strip()]


def _shortened(texts: Sequence[str]) -> str:
    text, half = "\n\n".join(texts), TASK_CHARACTERS // 2
    if len(text) <= TASK_CHARACTERS:
        return text
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def summary_in(content: str) -> str:
    """Returns the text of an answer, JSON text of its blocks."""
    texts = [str(block.get("text", "")) for block in json.loads(content) if block.get("type") == "text"]
    return "\n".join(text for text in texts if text.strip())
