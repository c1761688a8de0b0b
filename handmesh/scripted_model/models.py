"""What the API accepts from which model.

Only the differences that a request can trip over; a model that is not listed here is held to none of them, so that
tests may name any model they like. Sources: the SDK's model list and docstrings, the model migration guides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from handmesh.scripted_model.errors import ApiError

ALL_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})


@dataclass(frozen=True)
class ModelRules:
    """One model's rules. `thinking` holds the accepted `thinking.type` values, `efforts` those of the effort."""

    thinking: frozenset[str]
    efforts: frozenset[str] = ALL_EFFORTS
    efforts_without_thinking: frozenset[str] = ALL_EFFORTS
    forced_tools: bool = True  # tool_choice "any" and "tool"
    prefill: bool = False  # the conversation may end with the assistant's text
    system_messages: bool = True  # role "system" inside `messages`
    sampling: bool = False  # a temperature, top_p or top_k other than the default (version 2023-06-01 only)
    max_output_tokens: int = 128_000
    compaction: bool = True  # the API can summarise by itself (`compact_20260112`)


_MODERATE = frozenset({"low", "medium", "high"})
_ALWAYS_ON = ModelRules(frozenset({"adaptive"}), forced_tools=False)
_FIVE = ModelRules(frozenset({"adaptive", "disabled"}))
_FOUR_SEVEN = replace(_FIVE, system_messages=False)
_FOUR_SIX = replace(
    _FOUR_SEVEN,
    thinking=frozenset({"adaptive", "enabled", "disabled"}),
    efforts=ALL_EFFORTS - {"xhigh"},
    sampling=True,
)
_FOUR_FIVE = replace(
    _FOUR_SIX,
    thinking=frozenset({"enabled", "disabled"}),
    efforts=frozenset(),
    prefill=True,
    max_output_tokens=64_000,
    compaction=False,
)
_OPUS_FOUR_FIVE = replace(_FOUR_FIVE, efforts=_MODERATE)

MODELS: dict[str, ModelRules] = {
    "claude-fable-5-2": _ALWAYS_ON,
    "claude-mythos-5-2": _ALWAYS_ON,
    "claude-haiku-5-5": replace(_FIVE, efforts_without_thinking=_MODERATE),
    "claude-sonnet-5-5": replace(
        _ALWAYS_ON, thinking=frozenset({"adaptive", "between_tools"}), efforts_without_thinking=_MODERATE
    ),
    "claude-fable-5-1": _ALWAYS_ON,
    "claude-opus-5-5": _ALWAYS_ON,
    "claude-mythos-5-1": _ALWAYS_ON,
    "claude-sonnet-5": _FIVE,
    "claude-fable-5": replace(_ALWAYS_ON, forced_tools=True),
    "claude-mythos-5": replace(_ALWAYS_ON, forced_tools=True),
    "claude-opus-5": replace(_FIVE, efforts_without_thinking=_MODERATE),
    "claude-opus-4-8": _FIVE,
    "claude-opus-4-7": _FOUR_SEVEN,
    "claude-mythos-preview": _FOUR_SEVEN,
    "claude-opus-4-6": _FOUR_SIX,
    "claude-sonnet-4-6": _FOUR_SIX,
    "claude-haiku-4-5": _FOUR_FIVE,
    "claude-haiku-4-5-20251001": _FOUR_FIVE,
    "claude-opus-4-5": _OPUS_FOUR_FIVE,
    "claude-opus-4-5-20251101": _OPUS_FOUR_FIVE,
    "claude-sonnet-4-5": _FOUR_FIVE,
    "claude-sonnet-4-5-20250929": _FOUR_FIVE,
}


def check_model(request: dict[str, Any]) -> Iterator[str]:
    """Yields what the request's model does not accept of the parameters; shapes are right already."""
    rules = MODELS.get(request["model"])
    if rules is None:
        return
    model, limit = request["model"], rules.max_output_tokens
    if request.get("max_tokens", 0) > limit:
        yield (
            f"max_tokens: {request['max_tokens']} > {limit}, which is the maximum allowed number of output tokens "
            f"for {model}"
        )
    yield from _check_thinking(rules, request)
    if _samples(request) and not rules.sampling:
        yield f"`{_samples(request)}` is deprecated for this model."
    if not rules.forced_tools and (request.get("tool_choice") or {}).get("type") in ("any", "tool"):
        yield 'tool_choice: type "tool" and "any" are not supported for this model.'


def _check_thinking(rules: ModelRules, request: dict[str, Any]) -> Iterator[str]:
    kind = (request.get("thinking") or {}).get("type")
    effort = (request.get("output_config") or {}).get("effort")
    if kind == "adaptive" and "adaptive" not in rules.thinking:
        yield "adaptive thinking is not supported on this model"
    elif kind is not None and kind not in rules.thinking:
        yield (
            f'"thinking.type.{kind}" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.'
        )
    elif effort is not None and effort not in rules.efforts:
        yield f"output_config.effort: '{effort}' is not supported for this model."
    elif effort is not None and kind in ("disabled", "between_tools") and effort not in rules.efforts_without_thinking:
        yield (
            f"output_config.effort '{effort}' is not supported when thinking is disabled on this model. Use effort "
            "'high' or below, or enable thinking."
        )


def _samples(request: dict[str, Any]) -> str | None:
    """Returns the first sampling parameter that is not at its default."""
    defaults = {"temperature": 1, "top_p": 1, "top_k": None}
    return next((name for name, default in defaults.items() if request.get(name, default) != default), None)


def list_models() -> dict[str, Any]:
    """Returns the body of GET /v1/models: every known model on one page."""
    data = [_info(name) for name in MODELS]
    return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}


def get_model(name: str) -> dict[str, Any] | ApiError:
    """Returns the body of GET /v1/models/{name}, or a 404."""
    return _info(name) if name in MODELS else ApiError(404, "not_found_error", f"model: {name}")


def _info(name: str) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name.replace("-", " ").title(),
        "created_at": "1970-01-01T00:00:00Z",  # what the API gives for an unknown date
        "lifecycle": "active",
        "max_tokens": MODELS[name].max_output_tokens,
    }
