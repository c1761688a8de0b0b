// Why a call was refused: the google.rpc.ErrorInfo that the mesh sends with its no, in the trailing metadata.

import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";
import { type ServiceError } from "@grpc/grpc-js";

const DETAILS_KEY = "grpc-status-details-bin";

/** `reason` is an ErrorReason of the mesh such as `EPOCH_STALE`; empty when nobody of the mesh said anything. */
export interface Refusal {
  reason: string;
  metadata: Record<string, string>;
}

export function refusalOf(problem: unknown): Refusal {
  const [details] = (problem as Partial<ServiceError>)?.metadata?.get(DETAILS_KEY) ?? [];
  if (details instanceof Uint8Array) {
    for (const any of fields(details, 3)) {
      // google.rpc.Status.details
      const [url, info] = [text(any, 1), fields(any, 2)[0]];
      if (info && url.endsWith("/google.rpc.ErrorInfo")) {
        const entries = fields(info, 3).map((entry) => [text(entry, 1), text(entry, 2)]);
        return { reason: text(info, 1), metadata: Object.fromEntries(entries) };
      }
    }
  }
  return { reason: "", metadata: {} };
}

function text(message: Uint8Array, wanted: number): string {
  return Buffer.from(fields(message, wanted)[0] ?? []).toString();
}

function fields(message: Uint8Array, wanted: number): Uint8Array[] {
  const reader = new BinaryReader(message);
  const found: Uint8Array[] = [];
  while (reader.pos < reader.len) {
    const [number, wire] = reader.tag();
    if (number === wanted && wire === WireType.LengthDelimited) found.push(reader.bytes());
    else reader.skip(wire);
  }
  return found;
}
