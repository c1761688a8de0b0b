"""Which trace a call belongs to. Takes nothing but the standard library, and sends nothing anywhere."""

from __future__ import annotations

import secrets
import sys


def traceparent() -> str:
    """Returns the W3C trace context of a call: of the span that the program is in, if it traces itself with
    OpenTelemetry, else of a new trace. The log keeps it with what the call began, whether or not anybody records it."""
    trace = sys.modules.get("opentelemetry.trace")  # nothing is loaded for it
    if trace is not None:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
