"""session: the append-only log of every session (emitEvent, getEvents, getSession)."""
