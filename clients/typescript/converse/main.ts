// Gives an agent a task and sees it through: answers its tool, decides what it asks, and prints all that happens.
//
//     HANDMESH_API_KEY=... node build/converse/main.js --address 127.0.0.1:7401 "look into order 7"
//
// The agent has one tool of ours, lookup_order, and has to ask before it runs bash. docs/clients.md explains it.

import { parseArgs } from "node:util";
import { MeshError } from "../session/errors.js";
import { Mesh } from "../session/mesh.js";
import { type Session } from "../session/session.js";
import { ToolPolicyAction } from "../stubs/handmesh/session/v1/config.js";
import { type Event } from "../stubs/handmesh/session/v1/event.js";
import * as lines from "./lines.js";

const CONFIG = {
  title: "converse",
  customTools: [
    {
      name: "lookup_order",
      description: "Tells how an order stands.",
      inputSchemaJson: '{"type":"object","properties":{"order_id":{"type":"string"}},"required":["order_id"]}',
    },
  ],
  toolPolicies: [{ pattern: "bash", action: ToolPolicyAction.TOOL_POLICY_ACTION_ASK }],
};

function options() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      address: { type: "string", default: "" }, // host:port of the session service
      ca: { type: "string" }, // PEM file of the authority to trust
      session: { type: "string", default: "" }, // goes on with this session
      from: { type: "string", default: "1" }, // first position to print
      deny: { type: "boolean", default: false }, // declines what the agent asks for
      patience: { type: "string", default: "60" }, // seconds for which a mesh that is away is tried
    },
  });
  return { ...values, task: positionals[0] ?? "", apiKey: process.env.HANDMESH_API_KEY ?? "" };
}

/** Begins, or goes on, and follows the session until the turn has ended. */
async function converse(mesh: Mesh, { session: id, task, from, deny }: ReturnType<typeof options>): Promise<void> {
  const session = id ? mesh.session(id) : await mesh.create(CONFIG, task);
  const said = id && task ? await session.send(task) : 0;
  show({ session: session.id });
  for await (const { event, preview } of session.watch({ start: Number(from), previews: true })) {
    if (!event) {
      show(lines.ofPreview(preview));
      continue;
    }
    show(lines.ofEvent(event));
    try {
      await react(session, event, !deny);
    } catch (error) {
      if (!(error instanceof MeshError) || !["TOOL_CALL_SETTLED", "TOOL_CALL_UNKNOWN"].includes(error.reason))
        throw error;
      show({ refused: lines.ofError(error) }); // somebody else was first
    }
    if (event.kind?.$case === "turnEnded" && event.position > said) return;
  }
}

/** Does what an event asks of a client. */
async function react(session: Session, { kind }: Event, allowed: boolean): Promise<void> {
  switch (kind?.$case) {
    case "customToolRequested": {
      const { order_id: order } = JSON.parse(kind.value.inputJson) as { order_id?: string };
      await session.answer(kind.value.toolUseId, `order ${order} is paid`);
      return;
    }
    case "toolConfirmationRequested":
      await session.decide(kind.value, allowed, allowed ? "" : "Not now.");
  }
}

function show(line: lines.Line): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

const chosen = options();
if (!chosen.apiKey || !chosen.address || !(chosen.task || chosen.session)) {
  console.error("HANDMESH_API_KEY has to be set, and an address, and a task or a session to be given");
  process.exit(2);
}
const { apiKey, ca: caFile, patience } = chosen;
const mesh = new Mesh(chosen.address, { apiKey, caFile, patienceSeconds: Number(patience) });
try {
  await converse(mesh, chosen);
} catch (error) {
  if (!(error instanceof MeshError)) throw error;
  show({ error: lines.ofError(error) });
  process.exitCode = 1;
} finally {
  mesh.close();
}
