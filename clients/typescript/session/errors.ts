// The one error, rebuilt from what the mesh sends with a refusal.

import { type ServiceError, status } from "@grpc/grpc-js";
import { refusalOf } from "../wire/refusal.js";

/**
 * A call failed. Branch on `reason`, or on `code`; the text is for people and may change.
 *
 * `reason` is a name of handmesh.error.v1.ErrorReason without its prefix, and `metadata` what that reason's comment
 * promises. When nobody of the mesh answered, `reason` is empty.
 */
export class MeshError extends Error {
  constructor(
    readonly code: status,
    readonly reason: string,
    text: string,
    readonly metadata: Record<string, string> = {},
  ) {
    super(`${text} [${reason || status[code]}]`);
  }

  /** What a service that goes away, or a network that breaks, looks like. A refusal has another code. */
  get broken(): boolean {
    return this.code === status.UNAVAILABLE || this.code === status.CANCELLED;
  }
}

/** Turns a failed call back into what the mesh said. Anything else is thrown as it is. */
export function raised(problem: unknown): MeshError {
  const failed = problem as Partial<ServiceError>;
  if (failed?.code === undefined || failed.metadata === undefined) throw problem;
  const { reason, metadata } = refusalOf(problem);
  return new MeshError(failed.code, reason, failed.details ?? "", metadata);
}
