import { status } from "@grpc/grpc-js";
import { ToolOutcome, ToolResult } from "../stubs/handmesh/sandbox/v1/tool.js";
import { Event, type ToolConfirmationRequested } from "../stubs/handmesh/session/v1/event.js";
import { EmitEventRequest, type Preview, WatchEventsRequest } from "../stubs/handmesh/session/v1/session.js";
import { Cursor } from "./cursor.js";
import { Endurance } from "./endurance.js";
import { MeshError, raised } from "./errors.js";
import { type Mesh, fresh } from "./mesh.js";

const HEALTHY_AFTER_MS = 5_000; // a stream that stood so long was a good one, even if it had nothing to say

/** What a watcher is told next: an event, or a piece of one to come. */
export type Told = { event: Event; preview?: undefined } | { event?: undefined; preview: Preview };

/** A handle on one session: say something, follow what happens, answer what is asked. All methods throw MeshError. */
export class Session {
  constructor(
    private readonly mesh: Mesh,
    readonly id: string,
  ) {}

  /** Appends an event and returns its position. Said again with the same `eventId` it is appended once. */
  async emit(event: Event): Promise<number> {
    const { service } = this.mesh;
    const request = EmitEventRequest.create({ sessionId: this.id, event });
    return (await this.mesh.call(service.emitEvent.bind(service), request)).position;
  }

  /** Sends the agent a message; returns its position. */
  send(text: string): Promise<number> {
    return this.emit(message(text));
  }

  /** Answers a CustomToolRequested. The first answer counts; another one is refused (`TOOL_CALL_SETTLED`). */
  answer(toolUseId: string, output: string): Promise<number> {
    const result = ToolResult.create({ output, outcome: ToolOutcome.TOOL_OUTCOME_OK });
    const value = { toolUseId, result };
    return this.emit(Event.create({ eventId: fresh("answer"), kind: { $case: "customToolAnswered", value } }));
  }

  /** Says whether a tool call may run. The first decision counts; `reason` is told to the model. */
  decide({ toolUseId, callHash }: ToolConfirmationRequested, allowed: boolean, reason = ""): Promise<number> {
    const value = { toolUseId, allowed, message: reason, callHash };
    return this.emit(Event.create({ eventId: fresh("decision"), kind: { $case: "toolConfirmed", value } }));
  }

  /**
   * Yields the events from `start` on, each once and in order, then each new one; never ends by itself.
   *
   * With `previews` also pieces of events to come. After a break it goes on behind the last event seen; previews of the
   * meantime are lost.
   */
  async *watch({ start = 1, previews = false } = {}): AsyncGenerator<Told> {
    const cursor = new Cursor(start);
    const endurance = new Endurance(this.mesh.patienceMs);
    for (;;) {
      const request = WatchEventsRequest.create({ sessionId: this.id, startPosition: cursor.next, previews });
      const opened = Date.now();
      const stream = this.mesh.service.watchEvents(request, this.mesh.metadata);
      stream.on("error", () => {}); // it is told below; after the end of this loop it is of no interest
      let problem = new MeshError(status.UNAVAILABLE, "", "the stream ended");
      try {
        for await (const page of stream) {
          endurance.renew();
          for (const event of cursor.news(page.events)) yield { event };
          for (const preview of page.previews) yield { preview };
        }
      } catch (failed) {
        if (failed instanceof MeshError) throw failed;
        problem = raised(failed);
      } finally {
        stream.cancel();
      }
      if (!problem.broken && problem.reason !== "READER_SLOW") throw problem;
      if (Date.now() - opened > HEALTHY_AFTER_MS) endurance.renew();
      await endurance.wait(problem);
    }
  }
}

/** Makes a message to the agent, with an id of its own. */
export function message(text: string): Event {
  const value = { contentJson: JSON.stringify([{ type: "text", text }]) };
  return Event.create({ eventId: fresh("message"), kind: { $case: "messageReceived", value } });
}
