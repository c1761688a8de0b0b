"""Workers of remote hands, many in one process: `python -m bench.hands.workers FILE`.

The file is JSON: `address`, and `hands`, a list of [name, token]. Each has two tools: `hi`, which answers at once, and
`nap`, which takes a while. When all are connected, it says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

import uvloop

from handmesh.hand import Place, Worker, hand_of, tool


@tool
async def hi() -> str:
    """Answers at once."""
    return "hi"


@tool
async def nap(seconds: float) -> str:
    """Answers after a while."""
    await asyncio.sleep(seconds)
    return "slept"


async def serve(address: str, hands: list[tuple[str, str]]) -> None:
    """Serves until it is killed."""
    logging.disable()
    workers = [Worker(hand_of(hi, nap), Place(address, name, token)) for name, token in hands]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    for worker in workers:
        await worker.linked.wait()
    print("connected", flush=True)
    await asyncio.gather(*running)


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text())
    uvloop.run(serve(told["address"], [(name, token) for name, token in told["hands"]]))
