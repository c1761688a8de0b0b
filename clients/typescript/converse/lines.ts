// What `converse` prints: one JSON object for each event, preview and error, the same in every language.

import { status } from "@grpc/grpc-js";
import { MeshError } from "../session/errors.js";
import { ToolOutcome, type ToolResult } from "../stubs/handmesh/sandbox/v1/tool.js";
import { type Event, TurnEndReason } from "../stubs/handmesh/session/v1/event.js";
import { type Preview } from "../stubs/handmesh/session/v1/session.js";

export type Line = Record<string, unknown>;

/** Returns position, kind and what is essential of the kind. Throws at an unknown one that must not be skipped. */
export function ofEvent(event: Event): Line {
  if (!event.kind && !event.ignorable) {
    const where = { position: String(event.position) };
    throw new MeshError(status.UNIMPLEMENTED, "EVENT_UNKNOWN", "an event of a newer contract", where);
  }
  const kind = event.kind ? event.kind.$case.replace(/[A-Z]/g, (it) => `_${it.toLowerCase()}`) : "unknown";
  return { event: kind, position: event.position, ...essence(event.kind) };
}

function essence(kind: Event["kind"]): Line {
  switch (kind?.$case) {
    case "messageReceived":
      return { content: kind.value.contentJson };
    case "modelReplied":
      return { content: kind.value.contentJson, stop_reason: kind.value.stopReason };
    case "toolStarted":
      return { tool_use_id: kind.value.toolUseId, name: kind.value.name, hand: kind.value.hand };
    case "toolFinished":
    case "customToolAnswered":
      return { tool_use_id: kind.value.toolUseId, ...ofResult(kind.value.result) };
    case "toolConfirmationRequested":
      return { tool_use_id: kind.value.toolUseId, name: kind.value.name, call_hash: kind.value.callHash };
    case "toolConfirmed":
      return { tool_use_id: kind.value.toolUseId, allowed: kind.value.allowed };
    case "customToolRequested":
      return { tool_use_id: kind.value.toolUseId, name: kind.value.name, input: kind.value.inputJson };
    case "turnEnded":
      return { reason: TurnEndReason[kind.value.reason].replace("TURN_END_REASON_", "") };
    default:
      return {};
  }
}

function ofResult(result: ToolResult | undefined): Line {
  const outcome = ToolOutcome[result?.outcome ?? 0].replace("TOOL_OUTCOME_", "");
  return { outcome, output: result?.output ?? "" };
}

/** Returns the piece, and where it belongs. */
export function ofPreview({ eventId, blockIndex, offset, delta }: Preview): Line {
  const preview = delta ? delta.$case.replace(/[A-Z]/g, (it) => `_${it.toLowerCase()}`) : "unknown";
  const piece = typeof delta?.value === "string" ? delta.value : "";
  return { preview, event_id: eventId, block: blockIndex, offset, piece };
}

/** Returns why a call was refused. */
export function ofError(error: MeshError): Line {
  return { code: status[error.code], reason: error.reason, metadata: error.metadata };
}
