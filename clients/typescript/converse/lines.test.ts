import assert from "node:assert/strict";
import { test } from "node:test";
import { Event, TurnEndReason, TurnEnded } from "../stubs/handmesh/session/v1/event.js";
import { Preview } from "../stubs/handmesh/session/v1/session.js";
import * as lines from "./lines.js";

test("an event is printed with what is essential of its kind", () => {
  const value = TurnEnded.create({ reason: TurnEndReason.TURN_END_REASON_DONE });
  const said = lines.ofEvent(Event.create({ position: 3, kind: { $case: "turnEnded", value } }));
  assert.deepEqual(said, { event: "turn_ended", position: 3, reason: "DONE" });
});

test("an event of a newer contract stops the reader, unless it may be ignored", () => {
  assert.deepEqual(lines.ofEvent(Event.create({ position: 4, ignorable: true })), { event: "unknown", position: 4 });
  assert.throws(() => lines.ofEvent(Event.create({ position: 5 })), { reason: "EVENT_UNKNOWN" });
});

test("a piece is printed with the place where it belongs", () => {
  const delta = { $case: "toolInput", value: "hi" } as const;
  const said = lines.ofPreview(Preview.create({ eventId: "e", blockIndex: 1, offset: 2, delta }));
  assert.deepEqual(said, { preview: "tool_input", event_id: "e", block: 1, offset: 2, piece: "hi" });
});
