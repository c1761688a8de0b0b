"""The resident process inside a sandbox: runs tools, keeps what they said, survives its callers.

It is copied into sandboxes as one archive and runs there alone: standard library only, Python 3.8 or newer, no
network. `daemon.py` is the loop; `execution.py` is one run of a tool; the rest are its parts.

A caller connects to the unix socket, writes JSON objects, one a line, and reads JSON lines. Each request is answered
before the next is read, and the connection stays:

    {"op": "ping"}                                   -> {"runner": 1, "epoch": 7, "running": 0}
    {"op": "start", "id", "name", "input", "digest",
     "timeout_ms", "epoch", "generation"}            -> {"started": true}, false when the id is known already
    {"op": "run", as start}                          -> {"result": {...}}: start, then follow without output
    {"op": "follow", "id", "offset"}                 -> {"chunk": "text", "next": 4096} ..., {"result": {...}}
    {"op": "cancel", "id", "epoch", "generation"}    -> {"known": true}
    {"op": "fence", "generation"}                    -> {"generation": 2}: nothing starts under a lower one any more
    {"op": "list"}                                   -> {"executions": [...]}
    {"op": "doors", "names"}                         -> {"ports": {"git": 8417}, "folder": "..", "outfitted": true}
    {"op": "outfit", "env", "trust", "generation"}   -> {}
    {"op": "visit", "door"}                          -> {"visit": 1} when a tool comes, then its bytes: see `doors`

`offset` counts bytes of raw output; null skips the output. A request that cannot be met is answered by
`{"error": "<reason>", "message": "..."}`. Lines from a caller are at most `MAX_REQUEST_BYTES` long.
Executions and their results live as long as the runner does, whatever becomes of callers.
"""
