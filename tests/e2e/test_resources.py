"""Resources through the real session service: a blob in, memory written back, a checkpoint out and in again."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import grpc
import pytest

from handmesh.client import Client
from handmesh.launcher.mesh import Mesh
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from handmesh.session.v1 import memory_pb2
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceStub

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

BIG = 50 << 20


def resident(pid: int) -> int:
    """Bytes of memory that a process has had at most."""
    with Path(f"/proc/{pid}/status").open() as file:
        (line,) = [line for line in file if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


async def test_what_goes_in_and_what_is_kept(mesh: Mesh, client: Client) -> None:
    """50 MiB go through without being held; memory gets back; the workspace is made again in another sandbox."""
    key = mesh.files.api_key.read_text().strip()
    metadata = (("authorization", f"Bearer {key}"),)
    ports = mesh.settings.ports
    session = await client.create_session()
    content = os.urandom(1 << 20) * (BIG >> 20)
    blob = await session.upload(content, "application/octet-stream")
    async with (
        grpc.aio.insecure_channel(ports.client("session")) as sessions,
        grpc.aio.insecure_channel(ports.client("sandbox")) as sandboxes,
    ):
        memories, hands = MemoryServiceStub(sessions), SandboxServiceStub(sandboxes)
        made = await memories.CreateMemoryStore(memory_pb2.CreateMemoryStoreRequest(name="notes"), metadata=metadata)
        store = made.memory_store.memory_store_id
        await memories.WriteMemory(
            memory_pb2.WriteMemoryRequest(memory_store_id=store, path="a", content=b"1"), metadata=metadata
        )
        mount = pb.Resource(mount_path="/workspace/notes", memory=pb.MemoryMount(memory_store_id=store))
        big = pb.Resource(mount_path="/workspace/big", blob=pb.BlobSource(blob_id=blob.blob_id))

        async def provision(**given: object) -> str:
            request = pb.ProvisionRequest(session_id=session.id, **given)
            sandbox_id: str = (await hands.Provision(request, metadata=metadata)).sandbox.sandbox_id
            return sandbox_id

        async def bash(sandbox_id: str, command: str) -> str:
            input = json.dumps({"command": command})
            request = pb.ExecuteRequest(sandbox_id=sandbox_id, name="bash", input=input)
            output: str = (await hands.Execute(request, metadata=metadata)).result.output
            return output

        before = resident(mesh.pids["sandbox"])
        one = await provision(resources=[mount, big])
        said = await bash(one, "sha256sum < big; cat notes/a; echo 2 > notes/b")
        assert said == f"{hashlib.sha256(content).hexdigest()}  -\n1"
        read = memory_pb2.ReadMemoryRequest(memory_store_id=store, path="b")
        answer = await memories.ReadMemory(read, metadata=metadata)
        assert (answer.content, answer.memory.session_id) == (b"2\n", session.id)
        kept = await hands.Checkpoint(pb.CheckpointRequest(sandbox_id=one), metadata=metadata)
        two = await provision(checkpoint_id=kept.checkpoint_id)
        assert await bash(two, "ls; sha256sum < big") == f"big\noutputs\n{hashlib.sha256(content).hexdigest()}  -"
        pieces = hands.ReadFile(pb.ReadFileRequest(sandbox_id=two, path="/workspace/big"), metadata=metadata)
        assert sum([len(piece.chunk) async for piece in pieces]) == BIG
        assert resident(mesh.pids["sandbox"]) - before < BIG // 2
        for sandbox_id in (one, two):
            await hands.Release(pb.ReleaseRequest(sandbox_id=sandbox_id), metadata=metadata)
