import { status } from "@grpc/grpc-js";
import { type Event } from "../stubs/handmesh/session/v1/event.js";
import { MeshError } from "./errors.js";

/** Where a reader is in a log: the next position to read. Positions are dense, from 1. */
export class Cursor {
  next: number;

  constructor(start: number) {
    this.next = Math.max(1, start);
  }

  /** Yields what was not seen yet, and moves on behind it. What comes twice is dropped; a gap throws `LOG_INVALID`. */
  *news(events: Event[]): Generator<Event> {
    for (const event of events) {
      if (event.position > this.next) {
        const text = `event ${this.next} is missing: ${event.position} came instead`;
        throw new MeshError(status.DATA_LOSS, "LOG_INVALID", text, { position: String(this.next) });
      }
      if (event.position === this.next) {
        this.next += 1;
        yield event;
      }
    }
  }
}
