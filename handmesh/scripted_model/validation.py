"""Decides whether the API would take a request: headers, then shapes, then the rules between the parts.

Pure: headers and a parsed body in, `ApiError`s out, the one the API reports first. A request that passes is safe to
read without further checks.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Mapping
from typing import Any

from handmesh.scripted_model.breakpoints import check_breakpoints
from handmesh.scripted_model.content import CACHE_CONTROL, MESSAGE, TEXT
from handmesh.scripted_model.context import BETAS, betas_of, check_context_management
from handmesh.scripted_model.conversation import NEWEST_VERSION, check_conversation
from handmesh.scripted_model.errors import ApiError, invalid
from handmesh.scripted_model.images import check_images
from handmesh.scripted_model.models import check_model
from handmesh.scripted_model.shapes import (
    Shape,
    anything,
    array,
    boolean,
    integer,
    mapping,
    nullable,
    number,
    one_of,
    record,
    string_or,
    tagged,
    text,
)
from handmesh.scripted_model.tools import TOOL_CHOICE, check_tools, tool

VERSIONS = (NEWEST_VERSION, "2023-06-01")
MAX_MESSAGES = 100_000
MAX_JSON_DEPTH = 100  # levels of nesting; the recursive checks stay far from the interpreter's limit

_DISPLAY = {"display": nullable(one_of("summarized", "omitted", "updates"))}
_UPDATES = "thinking-display-updates-"  # the beta that has the last one; Claude Code asks for it
_THINKING = tagged({
    "enabled": record({"type": anything, "budget_tokens": integer(1024)}, _DISPLAY),
    "adaptive": record({"type": anything}, _DISPLAY),
    "disabled": record({"type": anything}),
    "between_tools": record({"type": anything}),
})  # fmt: skip
_OUTPUT = record({}, {
    "effort": nullable(one_of("low", "medium", "high", "xhigh", "max")),
    "format": nullable(tagged({"json_schema": record({"type": anything, "schema": mapping})})),
})  # fmt: skip
_COUNTED: dict[str, Shape] = {
    "cache_control": CACHE_CONTROL,
    "output_config": _OUTPUT,
    "speed": nullable(one_of("standard", "fast")),
    "system": string_or(array(tagged({"text": TEXT}))),
    "thinking": _THINKING,
    "tool_choice": TOOL_CHOICE,
    "tools": array(tool),
}
_CREATED: dict[str, Shape] = {
    **_COUNTED,
    "container": nullable(string_or(mapping)),
    "diagnostics": nullable(record({}, {"previous_message_id": nullable(text())})),
    "inference_geo": nullable(text()),
    "metadata": record({}, {"user_id": nullable(text(max_length=512))}),
    "service_tier": one_of("auto", "standard_only"),
    "stop_sequences": array(text()),
    "stream": boolean,
}
_SAMPLING: dict[str, Shape] = {"temperature": number(0, 1), "top_p": number(0, 1), "top_k": integer(0)}

_MODEL_AND_MESSAGES: dict[str, Shape] = {
    "model": text(min_length=1, max_length=256),
    "messages": array(MESSAGE, max_length=MAX_MESSAGES),
}
# By version. max_tokens may be 0: then the prompt is cached and nothing is generated.
_CREATE: dict[str, tuple[dict[str, Shape], dict[str, Shape]]] = {
    NEWEST_VERSION: ({**_MODEL_AND_MESSAGES, "max_tokens": integer(0)}, _CREATED),
    "2023-06-01": ({**_MODEL_AND_MESSAGES, "max_tokens": integer(1)}, {**_CREATED, **_SAMPLING}),
}


def check_headers(headers: Mapping[str, str], api_key: str | None) -> ApiError | None:
    """Returns what is wrong with the headers (names in lower case), the key first; `api_key` None accepts any key."""
    key = headers.get("x-api-key", "")
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    if not key and scheme.lower() == "bearer":
        key = bearer.strip()
    if not key:
        return ApiError(401, "authentication_error", "x-api-key header is required")
    if api_key is not None and not hmac.compare_digest(key.encode(), api_key.encode()):
        which = "invalid x-api-key" if headers.get("x-api-key") else "Invalid bearer token"
        return ApiError(401, "authentication_error", which)
    version = headers.get("anthropic-version")
    if not version:
        return invalid("anthropic-version: header is required")
    if version not in VERSIONS:
        return invalid(f"anthropic-version: '{version}' is not a valid version")
    return None


def parse_body(body: bytes) -> dict[str, Any] | ApiError:
    """Returns the JSON object in a body, or why it is none."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return invalid(f"The request body is not valid JSON: {_reason(error)}")
    if not isinstance(value, dict):
        return invalid("Input should be a valid dictionary or object to extract fields from")
    trouble = _check_tree(value)
    return invalid(f"The request body is not valid JSON: {trouble}") if trouble else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _check_tree(value: Any) -> str | None:
    """Returns why a parsed value is no text that UTF-8 can carry, or nested too deeply to look at."""
    level, depth = [value], 0
    while level:
        if depth > MAX_JSON_DEPTH:
            return "nested too deeply"
        strings = [item for item in level if isinstance(item, str)]
        try:
            "".join(strings).encode()
        except UnicodeEncodeError:
            return "no low surrogate in string"
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level, depth = below, depth + 1
    return None


def check_message_request(request: dict[str, Any], headers: Mapping[str, str]) -> ApiError | None:
    """Returns why the API would refuse this body of POST /v1/messages, or None."""
    version = headers.get("anthropic-version", NEWEST_VERSION)
    return next(_problems(request, *_CREATE[version], headers, version), None)


def check_count_request(request: dict[str, Any], headers: Mapping[str, str]) -> ApiError | None:
    """Returns why the API would refuse this body of POST /v1/messages/count_tokens, or None."""
    version = headers.get("anthropic-version", NEWEST_VERSION)
    return next(_problems(request, _MODEL_AND_MESSAGES, _COUNTED, headers, version), None)


def _problems(
    body: dict[str, Any],
    required: dict[str, Shape],
    optional: dict[str, Shape],
    headers: Mapping[str, str],
    version: str,
) -> Iterator[ApiError]:
    """Yields problems; each check relies on those before it, so only the first problem means anything."""
    # Betas bring fields and kinds that nobody described here; they are let through, not looked at.
    betas = betas_of(headers)
    if betas & set(BETAS.values()):
        optional = {**optional, "context_management": anything}
    for finding in record(required, optional)(body, ""):
        if not (betas and finding.unknown and finding.path != "context_management"):
            yield invalid(str(finding))
    request = {name: value for name, value in body.items() if name in required or name in optional}
    yield from map(invalid, check_context_management(request, betas))
    thinking = request.get("thinking") or {}
    if thinking.get("display") == "updates" and _UPDATES not in headers.get("anthropic-beta", ""):
        yield invalid(f"thinking.{thinking['type']}.display: Input should be 'summarized' or 'omitted'")
    if not request["messages"]:
        yield invalid("messages: at least one message is required")
    yield from map(invalid, _check_parameters(request))
    yield from map(invalid, check_tools(request))
    yield from map(invalid, check_model(request))
    yield from map(invalid, check_breakpoints(request))
    yield from map(invalid, check_conversation(request, version))
    yield from check_images(request)


def _check_parameters(request: dict[str, Any]) -> Iterator[str]:
    if any(not sequence.strip() for sequence in request.get("stop_sequences") or []):
        yield "stop_sequences: each stop sequence must contain non-whitespace"
    thinking = request.get("thinking") or {}
    if thinking.get("type") == "enabled":
        if request.get("max_tokens", 1 << 60) <= thinking["budget_tokens"]:
            yield "`max_tokens` must be greater than `thinking.budget_tokens`."
        if (request.get("tool_choice") or {}).get("type") in ("any", "tool"):
            yield "Thinking may not be enabled when tool_choice forces tool use."
    if thinking.get("type") in ("enabled", "adaptive") and request.get("temperature", 1) != 1:
        yield "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
