"""Messages of the contract to values and back."""

from __future__ import annotations

import json
from collections.abc import Iterable

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from services.kit.errors import Invalid, Unimplemented
from services.sandbox.hand import Archive, ExecutionInfo, File, FileInfo, Result, SandboxInfo
from services.sandbox.mounts import Mount
from services.sandbox.owners_core import is_leaving
from services.sandbox.resources import Blob, Resource
from services.sandbox.seeds_rules import Repository
from services.sandbox.tools import Tool


def needed(execution_id: str) -> None:
    """Raises Invalid for an execution id that is not there."""
    if not execution_id:
        raise Invalid("ID_INVALID", "execution_id is empty", field="execution_id")


def resource(it: pb.Resource) -> Resource:
    """Returns what a resource is. Raises Invalid (`RESOURCE_INVALID`) for one that is nothing."""
    match it.WhichOneof("source"):
        case "file":
            mode = 0o755 if it.file.executable else 0o644
            return File(it.mount_path, it.file.content, mode)
        case "log_view":
            return File(it.mount_path, it.log_view.json_lines, 0o444, it.log_view.offset)
        case "archive":
            return Archive(it.mount_path, it.archive.content)
        case "git_repository":
            return Repository(it.mount_path, it.git_repository.url, it.git_repository.ref)
        case "blob":
            return Blob(it.mount_path, it.blob.blob_id, 0o755 if it.blob.executable else 0o644)
        case "memory":
            return Mount(it.mount_path, it.memory.memory_store_id, it.memory.read_only)
        case None:
            raise Invalid("RESOURCE_INVALID", "a resource says nothing", mount_path=it.mount_path[:200])
        case kind:
            raise Unimplemented("UNIMPLEMENTED", f"resources of the kind {kind} are not built yet")


def sandbox(info: SandboxInfo) -> pb.Sandbox:
    """Says what is known of a sandbox."""
    labels = info.labels
    sandbox = pb.Sandbox(
        sandbox_id=labels.sandbox_id,
        environment=labels.environment,
        backend=info.backend,
        session_id=labels.session_id,
        hand=labels.hand,
        request_id=labels.request_id,
        generation=labels.generation,
        unenforced_limits=info.unenforced_limits,
        pooled=bool(labels.pool),
        standing_hand=labels.standing,
        leaving=is_leaving(labels),
        readers=[pb.HandReader(session_id=it.session_id, hand=it.hand) for it in labels.readers if not it.leaving],
        description=labels.description,
        previous_session_id=labels.past[-1].session_id if labels.past else "",
    )
    sandbox.create_time.FromNanoseconds(int(labels.create_time * 1e9))
    return sandbox


def execution(known: ExecutionInfo) -> pb.Execution:
    """Says what is known of an execution."""
    execution = pb.Execution(execution_id=known.execution_id, name=known.name, running=known.outcome is None)
    execution.generation = known.generation
    if known.outcome is not None:
        execution.outcome = tool_pb2.ToolOutcome.Value(f"TOOL_OUTCOME_{known.outcome.name}")
    execution.start_time.FromNanoseconds(int(known.start_time * 1e9))
    return execution


def result(result: Result) -> tool_pb2.ToolResult:
    """Says what a tool has said."""
    return tool_pb2.ToolResult(
        output=result.text,
        outcome=tool_pb2.ToolOutcome.Value(f"TOOL_OUTCOME_{result.outcome.name}"),
        content_json=result.content_json,
        truncated=result.truncated,
        exit_code=result.exit_code,
        signal=result.signal,
        spill_path=result.spill_path,
    )


def tools(tools: Iterable[Tool]) -> list[tool_pb2.Tool]:
    """Says what tools there are."""
    return [
        tool_pb2.Tool(
            name=tool.name,
            description=tool.description,
            input_schema_json=json.dumps(tool.input_schema),
            idempotent=tool.idempotent,
            read_only=tool.read_only,
        )
        for tool in tools
    ]


def file_info(file: FileInfo) -> pb.FileInfo:
    """Says what is known of a file."""
    info = pb.FileInfo(path=file.path, size=file.size)
    info.modify_time.FromNanoseconds(file.modify_time_ns)
    return info
