"""harness: a stateless loop that calls Claude and routes tool calls (wake)."""
