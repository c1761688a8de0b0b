// One session's log as a harness works with it: reads it and goes on reading, takes the session up, and appends.
//
//  * Facts (a call started, a call was settled) are said again until they are in the log.
//  * Decisions (a reply, the end of a turn) are only proposed, with the position that they were made at: when the log
//    has moved on, they are dropped and made again.
//  * Whoever finds a newer HarnessWoke in the log than its own stops. The mesh refuses what it still says.

import { randomUUID } from "node:crypto";
import { status } from "@grpc/grpc-js";
import { type Event } from "../stubs/handmesh/session/v1/event.js";
import {
  EmitEventRequest,
  type SessionServiceClient,
  WatchEventsRequest,
} from "../stubs/handmesh/session/v1/session.js";
import { State } from "./core.js";
import { call, codeOf, pause, reasonOf } from "./rpc.js";

const EMIT_SECONDS = 15;
const AGAIN_SECONDS = 30; // how long a part of the mesh that is away is asked again
const PAUSE_MS = 250;

/** What an event says. Fields that are left out have their defaults, also those that a later contract adds. */
export type Kind = NonNullable<NonNullable<Parameters<typeof Event.fromPartial>[0]>["kind"]>;

/** Another harness owns the session, or nobody does: this one has nothing more to say. */
export class Stopped extends Error {}

export class Journal {
  readonly state = new State();
  epoch = 0;
  grant = "";
  private last = -1; // position of the log's last event, as far as it was told
  private readonly closed = new AbortController();
  private failure: unknown;
  private waiting: (() => void)[] = [];

  constructor(
    private readonly session: SessionServiceClient,
    readonly sessionId: string,
  ) {
    void this.read().catch((problem) => this.fail(problem));
  }

  close(): void {
    this.closed.abort();
  }

  /** Ends with the journal: for calls that must not outlive it. */
  get signal(): AbortSignal {
    return this.closed.signal;
  }

  // --- reading ---

  private async read(): Promise<void> {
    while (!this.signal.aborted) {
      const start = { sessionId: this.sessionId, startPosition: this.state.head + 1 };
      const stream = this.session.watchEvents(WatchEventsRequest.create(start));
      const cancel = () => stream.cancel();
      this.signal.addEventListener("abort", cancel);
      try {
        for await (const page of stream) {
          for (const event of page.events) if (event.position === this.state.head + 1) this.state.fold(event);
          this.last = Math.max(this.last, page.lastPosition);
          this.wake();
        }
      } catch (problem) {
        if (![status.UNAVAILABLE, status.RESOURCE_EXHAUSTED, status.CANCELLED].includes(codeOf(problem))) throw problem;
      } finally {
        this.signal.removeEventListener("abort", cancel);
      }
      await pause(PAUSE_MS); // then it goes on behind the last event seen
    }
  }

  /** Waits until something is true, which is looked at whenever there is news. Throws what ends the run. */
  async until(holds: () => boolean): Promise<void> {
    for (;;) {
      if (this.failure) throw this.failure;
      if (this.epoch && this.state.woke > this.epoch) throw new Stopped();
      if (holds()) return;
      await new Promise<void>((resolve) => this.waiting.push(resolve));
    }
  }

  /** Waits until all of the log was read, as it is now. */
  async caughtUp(): Promise<void> {
    await this.until(() => this.last >= 0 && this.state.head >= this.last);
  }

  /** Waits until a position was read. */
  async reach(position: number): Promise<void> {
    await this.until(() => this.state.head >= position);
  }

  /** Tells those who wait to look again. */
  wake(): void {
    for (const resolve of this.waiting.splice(0)) resolve();
  }

  /** Ends the run with a problem. */
  fail(problem: unknown): void {
    this.failure ??= problem;
    this.wake();
  }

  // --- saying ---

  /** Takes the session up where the log ends. From here on nobody else writes as its harness. */
  async takeUp(harness: string, instance: string): Promise<void> {
    const woke: Kind = { $case: "harnessWoke", value: { harness, instance } };
    const taken = await this.proposed(() => this.emit(`woke-${randomUUID()}`, woke, this.state.head));
    if (!taken) return;
    await this.reach(taken.position);
    if (this.state.woke > taken.position) throw new Stopped();
    [this.epoch, this.grant] = [taken.position, taken.grant];
  }

  /** Says a decision, unless the log has moved on: then it returns once that was read. */
  async propose(eventId: string, kind: Kind): Promise<void> {
    const head = this.state.head;
    const said = await this.proposed(() => this.emit(`${eventId}-${this.epoch}-${head}`, kind, head));
    if (said) await this.reach(said.position);
  }

  /** Says a fact, until it is in the log. */
  async say(eventId: string, kind: Kind): Promise<void> {
    const said = await this.emit(eventId, kind).catch((problem) => {
      if (reasonOf(problem) === "EPOCH_STALE") throw new Stopped();
      if (reasonOf(problem) !== "TOOL_CALL_SETTLED") throw problem; // settled is settled, whoever said it first
    });
    if (said) await this.reach(said.position);
  }

  /** Says that a part of the mesh failed. */
  async error(part: string, about: string, problem: unknown): Promise<void> {
    const reason = reasonOf(problem) || status[codeOf(problem)];
    const value = { reason, message: `${about} failed: ${reason}`, part, retryable: false };
    await this.say(`error-${this.epoch}-${this.state.head}-${about}`, { $case: "errorRaised", value });
  }

  /** Asks a part of the mesh again while it is away. What is asked has to be idempotent. */
  async again<T>(ask: () => Promise<T>): Promise<T> {
    const deadline = Date.now() + AGAIN_SECONDS * 1000;
    for (;;) {
      try {
        return await ask();
      } catch (problem) {
        if (this.signal.aborted) throw new Stopped();
        if (codeOf(problem) !== status.UNAVAILABLE || Date.now() > deadline) throw problem;
        await pause(PAUSE_MS);
      }
    }
  }

  private async proposed<T>(emit: () => Promise<T>): Promise<T | undefined> {
    const head = this.state.head;
    try {
      return await emit();
    } catch (problem) {
      if (codeOf(problem) !== status.ABORTED) throw problem; // POSITION_CONFLICT, or EPOCH_STALE
      await this.until(() => this.state.head > head);
      return undefined;
    }
  }

  private async emit(eventId: string, kind: Kind, expectedPosition?: number) {
    const event = { eventId, kind, ignorable: kind.$case === "errorRaised" };
    const request = EmitEventRequest.create({ sessionId: this.sessionId, event, expectedPosition, epoch: this.epoch });
    const { answer, grant } = await this.again(() =>
      call(this.session, "emitEvent", request, { seconds: EMIT_SECONDS }),
    );
    return { position: answer.position, grant };
  }
}
