"""The sandbox service as a process of its own, which a test may kill and start again."""

from __future__ import annotations

import asyncio
import datetime
import os
import sys
from pathlib import Path
from typing import Any

from handmesh.launcher.ca import ensure_certificates
from handmesh.launcher.ports import SERVICES, free_ports
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from services.kit.channels import connect

STARTS = 5


class Service:
    """`python -m services.sandbox`, and a harness's channel to it."""

    def __init__(self, data: Path, **extra: str) -> None:
        """Takes more of its environment."""
        (port,) = free_ports(1)
        ensure_certificates(data / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HANDMESH_LISTEN": f"127.0.0.1:{port}",
            "HANDMESH_TLS_DIR": str(data / "tls" / "sandbox"),
            "HANDMESH_STATE_DIR": str(data / "state"),
            "HANDMESH_ALLOW_UNISOLATED": "1",
            "HANDMESH_CANARY": "CANARY",
            **extra,
        }
        self.channel = connect(f"127.0.0.1:{port}", data / "tls" / "harness")
        self.stub: Any = SandboxServiceStub(self.channel)
        self.process: asyncio.subprocess.Process | None = None
        self.log = data / "sandbox.log"

    async def start(self) -> None:
        """Starts it, and waits until it answers. Again when its port is somebody's connection for a moment."""
        for attempt in range(1, STARTS + 1):
            with self.log.open("wb") as log:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "services.sandbox", env=self.environment, stderr=log
                )
            ended = asyncio.create_task(self.process.wait())
            answer = asyncio.ensure_future(
                self.stub.ListTools(pb.ListToolsRequest(), wait_for_ready=True, timeout=60)  # a call is no coroutine
            )
            await asyncio.wait({ended, answer}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                ended.cancel()
                await answer
                return
            answer.cancel()
            said = self.log.read_text(errors="replace")[-2000:]
            assert attempt < STARTS, f"it ended while it started: {said}"
            await asyncio.sleep(1.0)

    async def end(self, number: int) -> int:
        """Ends it by a signal, and returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()
