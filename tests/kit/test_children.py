"""A service that starts programs while it serves."""

from __future__ import annotations

import asyncio
import sys

# Calls itself without a pause and starts programs meanwhile; says how many of them failed.
_SCRIPT = """
import asyncio
import services
import grpc
import uvloop

async def echo(request, context):
    return request

async def main():
    server = grpc.aio.server()
    methods = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    call = channel.unary_unary("/test.Echo/Echo")

    async def call_on():
        while True:
            await call(b"x")

    callers = [asyncio.create_task(call_on()) for _ in range(8)]
    failed = 0
    for _ in range(100):
        process = await asyncio.create_subprocess_exec("/bin/true")
        failed += await process.wait() != 0
    failed += sum(caller.done() for caller in callers)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await channel.close()
    await server.stop(None)
    print(failed)

uvloop.run(main())
"""


async def test_programs_start_while_calls_are_under_way() -> None:
    """Every program runs, every call goes on, and gRPC has no hand in the fork: it would abort one in hundreds."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SCRIPT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, complaint = await process.communicate()
    assert (said.strip(), [line for line in complaint.splitlines() if b"fork()" in line]) == (b"0", [])
