"""Starts a whole mesh on one machine: NATS, OpenBao and the four services as child processes on loopback.

It is for `handmesh up`, the demo and tests. It imports no service: it spawns `python -m services.<name>` and talks to
what it started only as any other client would. Read in this order: `mesh`, then `processes`, then the part in question.
"""
