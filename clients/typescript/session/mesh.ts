// A client of a mesh on the generated stubs. Read errors.ts, endurance.ts, cursor.ts, this file, then session.ts.
//
//     const mesh = new Mesh("127.0.0.1:7401", { apiKey });
//     const session = await mesh.create({ system: "Be brief." }, "List the files.");
//     for await (const told of session.watch({ previews: true })) ...

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { type CallOptions, type ClientUnaryCall, Metadata, type ServiceError, credentials } from "@grpc/grpc-js";
import { SessionConfig } from "../stubs/handmesh/session/v1/config.js";
import { CreateSessionRequest, SessionServiceClient } from "../stubs/handmesh/session/v1/session.js";
import { Endurance } from "./endurance.js";
import { raised } from "./errors.js";
import { Session, message } from "./session.js";

const CALL_MS = 30_000; // for one try of a call
const LOOPBACK = /^(localhost|127\.[0-9.]+|\[::1\]):\d+$/;
const CHANNEL_OPTIONS = {
  "grpc.keepalive_time_ms": 10_000, // a link that is dead without a word is noticed
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.max_receive_message_length": 8 * 1024 * 1024, // a page of events has up to 3 MiB, and one event more
  "grpc.initial_reconnect_backoff_ms": 50,
  "grpc.max_reconnect_backoff_ms": 1_000,
};

export interface Options {
  apiKey: string;
  caFile?: string; // PEM; without it plain text to this machine, and TLS with the system's authorities to others
  patienceSeconds?: number; // for which a mesh that is away is tried again
}

type Method<Q, A> = (
  request: Q,
  metadata: Metadata,
  options: Partial<CallOptions>,
  callback: (error: ServiceError | null, answer: A) => void,
) => ClientUnaryCall;

/** One mesh, at the address of its session service (`host:port`): sessions are made and found here. */
export class Mesh {
  readonly service: SessionServiceClient;
  readonly metadata = new Metadata();
  readonly patienceMs: number;

  constructor(address: string, { apiKey, caFile, patienceSeconds = 60 }: Options) {
    const roots = caFile === undefined ? undefined : readFileSync(caFile);
    const plain = roots === undefined && LOOPBACK.test(address);
    const link = plain ? credentials.createInsecure() : credentials.createSsl(roots);
    this.service = new SessionServiceClient(address, link, CHANNEL_OPTIONS);
    this.metadata.set("authorization", `Bearer ${apiKey}`);
    this.patienceMs = patienceSeconds * 1_000;
  }

  close(): void {
    this.service.close();
  }

  /** Starts a session with its first message. Throws MeshError, as all methods do. */
  async create(config: Parameters<typeof SessionConfig.fromPartial>[0], text: string): Promise<Session> {
    const request = CreateSessionRequest.create({
      requestId: fresh("create"),
      config: SessionConfig.fromPartial(config),
      initialEvents: [message(text)],
    });
    const { session } = await this.call(this.service.createSession.bind(this.service), request);
    return this.session(session?.sessionId ?? "");
  }

  /** Returns a handle on a session. Asks nobody. */
  session(id: string): Session {
    return new Session(this, id);
  }

  /** Makes a unary call, again while the mesh is away: so the request has to carry an id that makes it idempotent. */
  async call<Q, A>(method: Method<Q, A>, request: Q): Promise<A> {
    const endurance = new Endurance(this.patienceMs);
    for (;;) {
      try {
        return await new Promise<A>((resolve, reject) =>
          method(request, this.metadata, { deadline: Date.now() + CALL_MS }, (error, answer) =>
            error ? reject(error) : resolve(answer),
          ),
        );
      } catch (failed) {
        const problem = raised(failed);
        if (!problem.broken) throw problem;
        await endurance.wait(problem);
      }
    }
  }
}

/** Names an event, or a request, so that it can be said again after a lost answer. */
export const fresh = (what: string): string => `${what}-${randomUUID()}`;
