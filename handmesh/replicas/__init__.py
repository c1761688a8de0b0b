"""Calling a service that has several replicas: which of them a call goes to, and to which next when that one is away.

    ranking    which replica is first for a session, a sandbox or a grant (pure)
    members    the replicas that addresses stand for, with a channel to each
    calls      one call, as grpc gives it out, that goes on with the next replica
    channel    a `grpc.aio.Channel` over all of them: what the generated stubs take

Services and clients use it alike; it knows no service.
"""
