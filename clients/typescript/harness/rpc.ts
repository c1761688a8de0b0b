// What calls need: a channel that shows a certificate, promises in place of callbacks, and why a call was refused.

import { readFileSync } from "node:fs";
import {
  type CallOptions,
  type ChannelCredentials,
  type Client,
  type ClientUnaryCall,
  Metadata,
  type ServiceError,
  credentials,
  status,
} from "@grpc/grpc-js";
import { refusalOf } from "../wire/refusal.js";

export const GRANT_KEY = "x-handmesh-grant";

export const CHANNEL_OPTIONS = {
  "grpc.keepalive_time_ms": 5_000, // a peer that is stopped (a cut network, SIGSTOP) is noticed after 10 s
  "grpc.keepalive_timeout_ms": 5_000,
  "grpc.max_receive_message_length": 8 * 1024 * 1024, // a page of events has up to 3 MiB, and one event more
  "grpc.initial_reconnect_backoff_ms": 50,
  "grpc.max_reconnect_backoff_ms": 1_000,
};

/** Reads ca.pem, cert.pem and key.pem: who this harness is to the mesh, and whom it trusts. */
export function identityFrom(directory: string): ChannelCredentials {
  const read = (name: string) => readFileSync(`${directory}/${name}.pem`);
  return credentials.createSsl(read("ca"), read("key"), read("cert"));
}

/** A unary method of a generated client. */
type Method<Q, A> = (
  request: Q,
  metadata: Metadata,
  options: Partial<CallOptions>,
  callback: (error: ServiceError | null, answer: A) => void,
) => ClientUnaryCall;
type Request<M> = M extends Method<infer Q, infer _> ? Q : never;
type Answer<M> = M extends Method<infer _, infer A> ? A : never;

interface Options {
  seconds?: number; // how long it may take; without, for ever
  grant?: string; // sent along
  signal?: AbortSignal; // ends the wait, and not what was asked for
}

/** Calls a unary method. Returns its answer, and the grant that came with it, if one did. Throws ServiceError. */
export function call<C extends Client, N extends keyof C>(
  client: C,
  name: N,
  request: Request<C[N]>,
  { seconds, grant, signal }: Options = {},
): Promise<{ answer: Answer<C[N]>; grant: string }> {
  const metadata = new Metadata();
  if (grant) metadata.set(GRANT_KEY, grant);
  const deadline = seconds === undefined ? Infinity : Date.now() + seconds * 1000;
  const method = (client[name] as Method<Request<C[N]>, Answer<C[N]>>).bind(client);
  return new Promise((resolve, reject) => {
    let answer: Answer<C[N]>;
    const cancel = () => calling.cancel();
    const calling = method(request, metadata, { deadline }, (error, message) =>
      error ? reject(error) : (answer = message),
    );
    signal?.addEventListener("abort", cancel);
    calling.on("status", (ended) => {
      signal?.removeEventListener("abort", cancel);
      if (ended.code === status.OK) resolve({ answer, grant: String(ended.metadata.get(GRANT_KEY)[0] ?? "") });
    });
  });
}

export function codeOf(problem: unknown): status {
  return (problem as Partial<ServiceError>)?.code ?? status.UNKNOWN;
}

/** Returns the reason of a refused call, an ErrorReason of the mesh such as `EPOCH_STALE`. Empty without one. */
export const reasonOf = (problem: unknown): string => refusalOf(problem).reason;

export const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
