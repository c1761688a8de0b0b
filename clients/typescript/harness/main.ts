// A harness in TypeScript, as small as a whole one can be: it repeats what it is told, and runs `run: CMD` in the
// session's hand. docs/wire.md explains each step. Read core.ts (what to do), journal.ts (the log), run.ts (doing it),
// then this file.

import { homedir, hostname } from "node:os";
import { parseArgs } from "node:util";
import { SandboxServiceClient } from "../stubs/handmesh/sandbox/v1/sandbox.js";
import {
  ClaimWorkRequest,
  type ClaimWorkResponse,
  ReleaseWorkRequest,
  SessionServiceClient,
} from "../stubs/handmesh/session/v1/session.js";
import { CHANNEL_OPTIONS, call, identityFrom, pause, reasonOf } from "./rpc.js";
import { type Mesh, Run } from "./run.js";

const RECONNECT_MS = 200;
const RELEASE_SECONDS = 10;

const stateDirectory = process.env.HANDMESH_DATA_DIR ?? `${homedir()}/.local/state/handmesh`; // of `handmesh up`

const { values: options } = parseArgs({
  options: {
    session: { type: "string", default: "localhost:7411" },
    sandbox: { type: "string", default: "localhost:7413" },
    tls: { type: "string", default: `${stateDirectory}/tls/harness` },
    type: { type: "string", default: "wire-echo" },
    capacity: { type: "string", default: "20" },
  },
});
const instance = `${hostname()}:${process.pid}`;
const identity = identityFrom(options.tls);
const mesh: Mesh = {
  session: new SessionServiceClient(options.session, identity, CHANNEL_OPTIONS),
  sandbox: new SandboxServiceClient(options.sandbox, identity, CHANNEL_OPTIONS),
};
const runs = new Map<string, { claimId: string }>(); // what this process is at work on

/** Works on one session and gives its claim back. Then the mesh looks whether it needs a harness again. */
async function work(offer: ClaimWorkResponse): Promise<void> {
  const known = runs.get(offer.sessionId);
  if (known) {
    known.claimId = offer.claimId; // after a broken stream the work goes on under another claim
    return;
  }
  const mine = { claimId: offer.claimId };
  runs.set(offer.sessionId, mine);
  let refused = false;
  try {
    await new Run(mesh, offer.sessionId, options.type, instance).work();
  } catch (problem) {
    refused = true; // another harness should try
    console.error(
      JSON.stringify({
        event: "run failed",
        session_id: offer.sessionId,
        reason: reasonOf(problem) || String(problem),
      }),
    );
  }
  runs.delete(offer.sessionId);
  const release = ReleaseWorkRequest.create({ claimId: mine.claimId, sessionId: offer.sessionId, refused });
  await call(mesh.session, "releaseWork", release, { seconds: RELEASE_SECONDS }).catch(() => {}); // it ends unsaid, too
}

/** Takes sessions for as long as it lives. The open stream is the sign of life: when it ends, others get them. */
async function claim(): Promise<never> {
  for (;;) {
    const wanted = {
      capacity: Number(options.capacity),
      harnessTypes: [options.type],
      instance,
      workingSessionIds: [...runs.keys()],
    };
    try {
      for await (const offer of mesh.session.claimWork(
        ClaimWorkRequest.create(wanted),
      ) as AsyncIterable<ClaimWorkResponse>)
        if (offer.sessionId) void work(offer); // else it is a sign of life
    } catch (problem) {
      console.error(JSON.stringify({ event: "claims broke off", reason: reasonOf(problem) || String(problem) }));
    }
    await pause(RECONNECT_MS);
  }
}

for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => process.exit(0)); // what hands do goes on
await claim();
