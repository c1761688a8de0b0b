"""S11 and S13: links and paths lead the file tools and the mounts nowhere that a command could not go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from tests.sandbox.attacks.ground import Ground, planted

OK = tool_pb2.TOOL_OUTCOME_OK


@pytest.fixture
def around(ground: Ground) -> Iterator[dict[str, Any]]:
    """What lies on the machine for an attacker to find."""
    with planted(ground.canary) as it:
        yield it


async def test_s11_links_lead_nowhere(ground: Ground, around: dict[str, Any]) -> None:
    """By a link, a folder that is a link, or process 1's root: read, edit, grep and glob see the sandbox only."""
    targets = [
        around["file"],
        str(ground.state / "secret"),
        f"/proc/1/root{around['file']}",
        f"/proc/{ground.pid}/environ",
    ]
    async with ground.sandbox() as box:
        for number, target in enumerate(targets):
            await box.bash(f"ln -s {target} l{number}; ln -s {target.rsplit('/', 1)[0]} d{number}")
            for path in (target, f"l{number}", f"d{number}/{target.rsplit('/', 1)[1]}"):
                read = await box.run("read", {"file_path": path})
                assert read.outcome != OK and ground.canary not in read.output
                edited = await box.run("edit", {"file_path": path, "old_string": "CANARY", "new_string": "x"})
                assert edited.outcome != OK
            found = await box.run("grep", {"pattern": "CANARY", "path": f"d{number}"})
            assert ground.canary not in found.output
            found = await box.run("glob", {"pattern": f"d{number}/*"})
            assert "handmesh-planted" not in found.output
        for path in (
            "/etc/shadow",
            "/proc/1/mem",
            "/proc/1/environ",
            "/proc/kcore",
            "/dev/mem",
            "/proc/self/root/etc/shadow",
        ):
            assert (await box.run("read", {"file_path": path})).outcome != OK, path
    async with ground.sandbox("process") as box:  # the control: where there is no sandbox, the link leads there
        await box.bash(f"ln -s {around['file']} link")
        assert (await box.run("read", {"file_path": "link"})).output == ground.canary


async def test_s11_a_folder_that_changes_into_a_link(ground: Ground) -> None:
    """While a folder is swapped for a link to /etc and back, writes go to one of the two, and /etc stays as it was."""
    swap = "until [ -e stop ]; do mkdir d; rm -rf d; ln -s /etc d; rm d; done 2>/dev/null; echo swapped"
    async with ground.sandbox() as box:
        before = (await box.bash("cat /etc/passwd | md5sum; ls /etc | md5sum")).output
        swapping = asyncio.create_task(box.bash(swap))
        for _ in range(30):
            await box.run("write", {"file_path": "d/passwd", "content": "owned"}, answer=10.0)
            await box.run("edit", {"file_path": "d/passwd", "old_string": "root", "new_string": "x"}, answer=10.0)
        await box.bash("touch stop")
        assert (await swapping).output == "swapped"
        assert (await box.bash("cat /etc/passwd | md5sum; ls /etc | md5sum")).output == before


OUTSIDE = [
    *("", ".", "/", "/workspace", "/workspace/", "/workspace//x", "/workspace/../usr/x", "../../etc/x", "/proc/x"),
    *("/run/mh/x", "/run/handmesh/x", "/etc/gitconfig", "/opt/handmesh/runner.pyz", "/workspace/a/../../etc/x"),
    *("/workspace/./x", "/workspace/a\nb", "/workspace/a b", "/workspace/ä", "/workspace/a\u202eb", "/Workspace/x"),
    *("/workspace/" + "x" * 5000, "/workspace" + "/x" * 9, "/workspace/x/", "workspace/x", "/workspace\\x"),
]


async def test_s13_a_path_outside_the_workspace_is_refused(ground: Ground) -> None:
    """Before anything is made, at Provision and later; the answer names the reason."""
    async with ground.sandbox() as box:
        for path in OUTSIDE:
            resource = pb.Resource(mount_path=path, file=pb.File(content=b"x"))
            for call in (
                box.stub.Provision(pb.ProvisionRequest(environment="narrow", resources=[resource])),
                box.stub.PutResources(pb.PutResourcesRequest(sandbox_id=box.id, resources=[resource])),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_INVALID") as refusal:
                    await call
                assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT, path
        assert (await box.bash("ls -A")).output == "outputs"


async def test_s13_a_resource_is_put_by_the_tools_own_user(ground: Ground) -> None:
    """A link on the way to where a resource shall go is not followed; one that waits there is replaced."""
    async with ground.sandbox() as box:
        await box.bash("ln -s /etc/passwd one; ln -s /etc dir; mkdir three")

        async def put(path: str) -> None:
            resource = pb.Resource(mount_path=path, file=pb.File(content=b"owned"))
            await box.stub.PutResources(pb.PutResourcesRequest(sandbox_id=box.id, resources=[resource]))

        for path in ("/workspace/dir/passwd", "/workspace/dir/new", "/workspace/three"):
            with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_INVALID"):
                await put(path)
        await put("/workspace/one")
        await put("/workspace/four/five")
        assert (
            await box.bash("test ! -L one && cat four/five; grep -c owned /etc/passwd")
        ).output == "owned0\n[exit code: 1]"
