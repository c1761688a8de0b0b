// The client against a service that breaks off, repeats itself and refuses, over real gRPC.

import assert from "node:assert/strict";
import { type AddressInfo, createServer } from "node:net";
import { after, test } from "node:test";
import { BinaryWriter } from "@bufbuild/protobuf/wire";
import { Metadata, Server, ServerCredentials, status } from "@grpc/grpc-js";
import { Event } from "../stubs/handmesh/session/v1/event.js";
import {
  type CreateSessionRequest,
  CreateSessionResponse,
  type EmitEventRequest,
  EmitEventResponse,
  Preview,
  Session as SessionMessage,
  SessionServiceService,
  type WatchEventsRequest,
  WatchEventsResponse,
} from "../stubs/handmesh/session/v1/session.js";
import { MeshError } from "./errors.js";
import { Mesh } from "./mesh.js";

const ID = "sess_00000000000000000000000000";

/** What the mesh says no with. */
function refusal(code: status, reason: string) {
  const info = new BinaryWriter().uint32(10).string(reason).uint32(18).string("handmesh");
  info.uint32(26).bytes(new BinaryWriter().uint32(10).string("tool_use_id").uint32(18).string("toolu_1").finish());
  const any = new BinaryWriter().uint32(10).string("type.googleapis.com/google.rpc.ErrorInfo");
  const packed = any.uint32(18).bytes(info.finish()).finish();
  const metadata = new Metadata();
  metadata.set("grpc-status-details-bin", Buffer.from(new BinaryWriter().uint32(26).bytes(packed).finish()));
  return { code, details: "no", metadata };
}

const page = (positions: number[], previews: Preview[] = []) =>
  WatchEventsResponse.create({ events: positions.map((position) => Event.create({ position })), previews });

type Played = WatchEventsResponse | ReturnType<typeof refusal>;

/** Plays streams, one for each watch: pages, then what it breaks off with. Fails as many emits as it has failures. */
async function playing(streams: Played[][], failures: ReturnType<typeof refusal>[] = []) {
  const asked = {
    keys: [] as unknown[],
    created: [] as CreateSessionRequest[],
    emitted: [] as EmitEventRequest[],
    watched: [] as WatchEventsRequest[],
  };
  const server = new Server();
  const plays = {
    createSession(call: any, answer: any) {
      asked.keys.push(...call.metadata.get("authorization"));
      asked.created.push(call.request);
      answer(null, CreateSessionResponse.create({ session: SessionMessage.create({ sessionId: ID }) }));
    },
    emitEvent(call: any, answer: any) {
      asked.emitted.push(call.request);
      const failure = failures.shift();
      answer(failure ?? null, EmitEventResponse.create({ position: 7 }));
    },
    watchEvents(call: any) {
      asked.watched.push(call.request);
      for (const it of streams.shift() ?? []) {
        if ("code" in it) return void call.emit("error", it);
        call.write(it);
      }
      call.end();
    },
  };
  const { createSession, emitEvent, watchEvents } = SessionServiceService;
  server.addService({ createSession, emitEvent, watchEvents }, plays);
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, bound) =>
      error ? reject(error) : resolve(bound),
    ),
  );
  const mesh = new Mesh(`127.0.0.1:${port}`, { apiKey: "key", patienceSeconds: 2 });
  after(() => {
    mesh.close();
    server.forceShutdown();
  });
  return { mesh, session: mesh.session(ID), asked };
}

test("the key, the configuration and the first message go to the service", async () => {
  const { mesh, asked } = await playing([]);
  const session = await mesh.create({ system: "Be brief." }, 'say "hi"');
  const [request] = asked.created;
  const [first] = request?.initialEvents ?? [];
  assert.deepEqual([session.id, asked.keys, request?.config?.system], [ID, ["Bearer key"], "Be brief."]);
  assert.ok(request?.requestId && first?.eventId);
  assert.ok(first.kind?.$case === "messageReceived");
  assert.equal(first.kind.value.contentJson, '[{"type":"text","text":"say \\"hi\\""}]');
});

test("a broken stream is resumed behind the last event seen, and what comes twice is told once", async () => {
  const away = refusal(status.UNAVAILABLE, "DRAINING");
  const slow = refusal(status.RESOURCE_EXHAUSTED, "READER_SLOW");
  const piece = Preview.create({ eventId: "next" });
  const { session, asked } = await playing([[page([2, 3], [piece]), away], [page([3, 4]), slow], [], [page([5])]]);
  const seen = [];
  for await (const { event, preview } of session.watch({ start: 2, previews: true })) {
    seen.push(event?.position ?? preview?.eventId);
    if (event?.position === 5) break;
  }
  assert.deepEqual(seen, [2, 3, "next", 4, 5]);
  assert.deepEqual(
    asked.watched.map((it) => [it.startPosition, it.previews]),
    [2, 4, 5, 5].map((position) => [position, true]),
  );
});

test("a log has no gaps, so a missing event is not passed over", async () => {
  const { session } = await playing([[page([1, 3])]]);
  const watch = session.watch();
  assert.equal((await watch.next()).value?.event?.position, 1);
  await assert.rejects(watch.next(), { reason: "LOG_INVALID", metadata: { position: "2" } });
});

test("a refusal has the code, the reason and the reason's metadata, and is not tried again", async () => {
  const { session, asked } = await playing([], [refusal(status.FAILED_PRECONDITION, "TOOL_CALL_SETTLED")]);
  const question = { toolUseId: "toolu_1", name: "bash", callHash: "h" };
  const expected = {
    code: status.FAILED_PRECONDITION,
    reason: "TOOL_CALL_SETTLED",
    metadata: { tool_use_id: "toolu_1" },
  };
  await assert.rejects(session.decide(question, true), (error) => {
    assert.ok(error instanceof MeshError);
    assert.deepEqual({ code: error.code, reason: error.reason, metadata: error.metadata }, expected);
    return true;
  });
  assert.deepEqual(
    asked.emitted.map((it) => it.event?.kind),
    [{ $case: "toolConfirmed", value: { toolUseId: "toolu_1", allowed: true, message: "", callHash: "h" } }],
  );
});

test("while the service is away an answer is said again, by one event id", async () => {
  const away = refusal(status.UNAVAILABLE, "DRAINING");
  const { session, asked } = await playing([], [away, away]);
  assert.equal(await session.answer("toolu_1", "fine"), 7);
  assert.equal(asked.emitted.length, 3);
  assert.equal(new Set(asked.emitted.map((it) => it.event?.eventId)).size, 1);
});

test("a mesh that stays away is an error in the end", async () => {
  const listener = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => listener.once("listening", resolve));
  const { port } = listener.address() as AddressInfo;
  await new Promise((resolve) => listener.close(resolve)); // nobody is there now
  const mesh = new Mesh(`127.0.0.1:${port}`, { apiKey: "key", patienceSeconds: 0.2 });
  await assert.rejects(mesh.session(ID).watch().next(), { code: status.UNAVAILABLE, reason: "" });
  mesh.close();
});
