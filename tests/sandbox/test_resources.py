"""Files into and out of sandboxes through the service, as a client sees it."""

from __future__ import annotations

from typing import Any

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from services.kit.ids import mint
from tests.sandbox.test_archives import tar_of, zip_of
from tests.sandbox.test_server import bash, provisioned, refused, stub  # noqa: F401 - a fixture


async def read(stub: Any, sandbox_id: str, path: str, offset: int = 0) -> bytes:  # noqa: F811
    """Reads a file to its end."""
    request = pb.ReadFileRequest(sandbox_id=sandbox_id, path=path, offset=offset)
    return b"".join([answer.chunk async for answer in stub.ReadFile(request)])


async def test_archives_go_in_and_files_come_out(stub: Any) -> None:  # noqa: F811
    """With Provision and with PutResources; what a command writes into outputs is listed and fetched."""
    archive = pb.Archive(content=tar_of(("a", b"1"), ("b/c", b"22")))
    id = await provisioned(stub, resources=[pb.Resource(mount_path="/workspace/src", archive=archive)])
    more = pb.Resource(mount_path="/workspace/zip", archive=pb.Archive(content=zip_of(("d", b"333"))))
    await stub.PutResources(pb.PutResourcesRequest(sandbox_id=id, resources=[more]))
    assert not (await stub.ListFiles(pb.ListFilesRequest(sandbox_id=id, path="/workspace/outputs"))).files
    await stub.Execute(bash(id, "cat src/a src/b/c zip/d > outputs/all"))
    listed = await stub.ListFiles(pb.ListFilesRequest(sandbox_id=id))
    paths = [f"/workspace/{path}" for path in ("outputs/all", "src/a", "src/b/c", "zip/d")]
    assert ([file.path for file in listed.files], listed.truncated) == (paths, False)
    assert await read(stub, id, "/workspace/outputs/all") == b"122333"
    assert await read(stub, id, "/workspace/outputs/all", 4) == b"33"


async def test_what_is_wrong_with_a_path_is_said(stub: Any) -> None:  # noqa: F811
    """No such file, a relative path, an offset that is none, an archive that is bad or too large."""
    id = await provisioned(stub)
    await refused(
        stub.ListFiles(pb.ListFilesRequest(sandbox_id=id, path="/workspace/x")), "NOT_FOUND", "FILE_NOT_FOUND"
    )
    for path in ("x", "../x", "/workspace/\0"):
        request = pb.ReadFileRequest(sandbox_id=id, path=path)
        await refused(stub.ReadFile(request), "INVALID_ARGUMENT", "ARGUMENT_INVALID")
    request = pb.ReadFileRequest(sandbox_id=id, path="/workspace/x", offset=-1)
    await refused(stub.ReadFile(request), "INVALID_ARGUMENT", "ARGUMENT_INVALID")
    for content in (b"no archive", tar_of(("../x", b"")), bytes((1 << 20) + 1)):
        bad = pb.Resource(mount_path="/workspace/src", archive=pb.Archive(content=content))
        put = stub.PutResources(pb.PutResourcesRequest(sandbox_id=id, resources=[bad]))
        await refused(put, "INVALID_ARGUMENT", "RESOURCE_INVALID")
    await refused(stub.ListFiles(pb.ListFilesRequest(sandbox_id=mint("sbx"))), "NOT_FOUND", "SANDBOX_GONE")
