// One session at work: reads its log, takes it up, does what `decide` says, and says what happened.
//
//  * Facts (a call started, a call was settled) are said again until they are in the log.
//  * Decisions (a reply, the end of a turn) are only proposed, with the position that they were made at: when the log has
//    moved on, they are dropped and made again.
//  * Whoever finds a newer HarnessWoke in the log than its own stops. The mesh refuses what it still says.

import { createHash, randomUUID } from "node:crypto";
import { status } from "@grpc/grpc-js";
import { type SandboxServiceClient } from "../stubs/handmesh/sandbox/v1/sandbox.js";
import { ToolOutcome, type ToolResult } from "../stubs/handmesh/sandbox/v1/tool.js";
import { Event } from "../stubs/handmesh/session/v1/event.js";
import { type SessionServiceClient, WatchEventsRequest } from "../stubs/handmesh/session/v1/session.js";
import { type Action, type Call, State, decide, said } from "./core.js";
import { call, codeOf, pause, reasonOf } from "./rpc.js";

const EMIT_SECONDS = 15;
const LOOK_UP_SECONDS = 10;
const PROVISION_SECONDS = 300;
const AGAIN_SECONDS = 30; // how long a part of the mesh that is away is asked again
const PAUSE_MS = 250;

type Kind = NonNullable<Event["kind"]>;

export interface Mesh {
  session: SessionServiceClient;
  sandbox: SandboxServiceClient;
}

/** Another harness owns the session, or nobody does: this one has nothing more to say. */
class Stopped extends Error {}

export class Run {
  private readonly state = new State();
  private epoch = 0;
  private grant = "";
  private last = -1; // position of the log's last event, as far as it was told
  private readonly ended = new AbortController();
  private readonly running = new Map<string, Promise<void>>(); // by what is done
  private failure: unknown;
  private waiting: (() => void)[] = [];

  constructor(
    private readonly mesh: Mesh,
    readonly sessionId: string,
    private readonly harness: string,
    private readonly instance: string,
  ) {}

  /** Works until there is nothing to do. Throws what makes it impossible; then another harness should try. */
  async work(): Promise<void> {
    void this.read().catch((problem) => this.fail(problem));
    try {
      for (;;) {
        await this.until(() => this.last >= 0 && this.state.head >= this.last);
        const action = decide(this.state, this.harness);
        if (action.kind === "rest") return;
        const head = this.state.head;
        if (!this.epoch) await this.takeUp();
        else if (!(await this.act(action))) await this.until(() => this.state.head > head);
      }
    } catch (problem) {
      if (!(problem instanceof Stopped)) throw problem;
    } finally {
      this.ended.abort();
    }
  }

  // --- reading ---

  private async read(): Promise<void> {
    while (!this.ended.signal.aborted) {
      const start = WatchEventsRequest.fromPartial({ sessionId: this.sessionId, startPosition: this.state.head + 1 });
      const stream = this.mesh.session.watchEvents(start);
      const cancel = () => stream.cancel();
      this.ended.signal.addEventListener("abort", cancel);
      try {
        for await (const page of stream) {
          for (const event of page.events) if (event.position === this.state.head + 1) this.state.fold(event);
          this.last = Math.max(this.last, page.lastPosition);
          this.wake();
        }
      } catch (problem) {
        if (![status.UNAVAILABLE, status.RESOURCE_EXHAUSTED, status.CANCELLED].includes(codeOf(problem))) throw problem;
      } finally {
        this.ended.signal.removeEventListener("abort", cancel);
      }
      await pause(PAUSE_MS); // then it goes on behind the last event seen
    }
  }

  /** Waits until something is true, which is looked at after every event. Throws what ends the run. */
  private async until(holds: () => boolean): Promise<void> {
    for (;;) {
      if (this.failure) throw this.failure;
      if (this.epoch && this.state.woke > this.epoch) throw new Stopped();
      if (holds()) return;
      await new Promise<void>((resolve) => this.waiting.push(resolve));
    }
  }

  private wake(): void {
    for (const resolve of this.waiting.splice(0)) resolve();
  }

  private fail(problem: unknown): void {
    this.failure ??= problem;
    this.wake();
  }

  // --- saying ---

  private async emit(eventId: string, kind: Kind, expectedPosition?: number): Promise<{ position: number; grant: string }> {
    const event = Event.fromPartial({ eventId });
    event.kind = kind;
    event.ignorable = kind.$case === "errorRaised";
    const request = { sessionId: this.sessionId, event, expectedPosition, epoch: this.epoch };
    const emitEvent = this.mesh.session.emitEvent.bind(this.mesh.session);
    const { answer, grant } = await this.again(() => call(emitEvent, request, { seconds: EMIT_SECONDS }));
    return { position: answer.position, grant };
  }

  /** Takes the session up where the log ends. From here on nobody else writes as its harness. */
  private async takeUp(): Promise<void> {
    const woke: Kind = { $case: "harnessWoke", value: { harness: this.harness, instance: this.instance } };
    const taken = await this.proposed(() => this.emit(`woke-${randomUUID()}`, woke, this.state.head));
    if (!taken) return;
    await this.until(() => this.state.head >= taken.position);
    if (this.state.woke > taken.position) throw new Stopped();
    [this.epoch, this.grant] = [taken.position, taken.grant];
  }

  /** Says a decision, unless the log has moved on: then returns nothing once that was read. */
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

  private async propose(eventId: string, kind: Kind): Promise<void> {
    const said = await this.proposed(() => this.emit(`${eventId}-${this.epoch}-${this.state.head}`, kind, this.state.head));
    if (said) await this.until(() => this.state.head >= said.position);
  }

  private async say(eventId: string, kind: Kind): Promise<void> {
    const said = await this.emit(eventId, kind).catch((problem) => {
      if (reasonOf(problem) === "EPOCH_STALE") throw new Stopped();
      if (reasonOf(problem) !== "TOOL_CALL_SETTLED") throw problem; // settled is settled, whoever said it first
    });
    if (said) await this.until(() => this.state.head >= said.position);
  }

  private async error(part: string, about: string, problem: unknown): Promise<void> {
    const reason = reasonOf(problem) || status[codeOf(problem)];
    const value = { reason, message: `${about} failed: ${reason}`, part, retryable: false };
    await this.say(`error-${this.epoch}-${this.state.head}-${about}`, { $case: "errorRaised", value });
  }

  private async again<T>(ask: () => Promise<T>): Promise<T> {
    const deadline = Date.now() + AGAIN_SECONDS * 1000;
    for (;;) {
      try {
        return await ask();
      } catch (problem) {
        if (this.ended.signal.aborted) throw new Stopped();
        if (codeOf(problem) !== status.UNAVAILABLE || Date.now() > deadline) throw problem;
        await pause(PAUSE_MS);
      }
    }
  }

  // --- doing ---

  /** Does or begins what was decided. Tells whether it is done; else an event will tell how it ended. */
  private async act(action: Action): Promise<boolean> {
    switch (action.kind) {
      case "reply":
        const content = action.pieces.map((piece) => (piece.type === "tool_use" ? { ...piece, id: `toolu_${randomUUID()}` } : piece));
        const stopReason = content.some((block) => block.type === "tool_use") ? "tool_use" : "end_turn";
        const reply = { contentJson: JSON.stringify(content), stopReason, readPosition: this.state.head, model: this.harness };
        const { kind } = Event.fromPartial({ kind: { $case: "modelReplied", value: reply } });
        await this.propose("reply", kind as Kind);
        return true;
      case "end turn":
        const turnEnded = { reason: action.reason, readPosition: action.read, stopReason: "end_turn", usage: undefined, costMicros: 0 };
        await this.propose("ended", { $case: "turnEnded", value: turnEnded });
        return true;
      case "finish":
        await this.finish(action.call, action.result);
        return true;
      case "look up tools":
        await this.lookUp();
        return true;
      case "run":
        if (action.provision) this.begin("provision", () => this.provision());
        for (const each of action.calls) this.begin(each.id, () => this.runCall(each));
        return false;
      case "cancel":
        for (const each of action.calls) this.begin(`cancel ${each.id}`, () => this.cancel(each));
        for (const each of action.calls) this.begin(each.id, () => this.runCall(each));
        return false;
      case "rest":
        return true;
    }
  }

  private begin(key: string, work: () => Promise<void>): void {
    if (this.running.has(key)) return;
    const ended = () => this.running.delete(key) && this.wake();
    this.running.set(key, work().catch((problem) => this.fail(problem)).finally(ended));
  }

  private async lookUp(): Promise<void> {
    const { hand, spec } = this.state;
    const environment = spec.source?.$case === "environment" ? spec.source.value : "";
    const id = `offered-${this.epoch}-${this.state.head}-${hand}`;
    try {
      const listTools = this.mesh.sandbox.listTools.bind(this.mesh.sandbox);
      const asked = { of: { $case: "environment" as const, value: environment } };
      const { answer } = await this.again(() => call(listTools, asked, { seconds: LOOK_UP_SECONDS }));
      const tools = answer.tools.map((tool) => ({ name: this.state.shown(tool.name), description: tool.description, input_schema: JSON.parse(tool.inputSchemaJson) }));
      const toolsJson = JSON.stringify(tools);
      await this.say(id, { $case: "toolsOffered", value: { hand, toolsJson, digest: createHash("sha256").update(toolsJson).digest("hex") } });
    } catch (problem) {
      if (problem instanceof Stopped) throw problem;
      await this.say(id, { $case: "toolsOffered", value: { hand, toolsJson: "[]", digest: "" } }); // no digest: ask again next turn
      await this.error("hand", hand, problem);
    }
  }

  private async provision(): Promise<void> {
    const { hand, spec, calls } = this.state;
    const generation = this.state.generation + 1;
    const requestId = `${this.sessionId}/${hand}/${generation}`; // so that a harness after this one finds the same sandbox
    try {
      const provision = this.mesh.sandbox.provision.bind(this.mesh.sandbox);
      const environment = spec.source?.$case === "environment" ? spec.source.value : "";
      const request = { environment, resources: spec.resources, requestId, sessionId: this.sessionId, epoch: this.epoch, hand };
      const { answer } = await this.again(() => call(provision, request, { seconds: PROVISION_SECONDS, grant: this.grant, signal: this.ended.signal }));
      const { sandboxId, unenforcedLimits, environment: made } = answer.sandbox!;
      const value = { hand, sandboxId, environment: made, generation, unenforcedLimits };
      await this.say(`provisioned-${hand}-${generation}`, { $case: "sandboxProvisioned", value });
    } catch (problem) {
      if (this.isOver(problem)) throw new Stopped();
      await this.error("hand", hand, problem);
      const result = said(`The hand could not be made: ${reasonOf(problem)}`, ToolOutcome.TOOL_OUTCOME_TOOL_ERROR);
      for (const each of calls.values()) if (!each.result && !each.started) await this.finish(each, result);
    }
  }

  private async runCall(it: Call): Promise<void> {
    const { hand } = this.state;
    const sandbox = it.started ? it.sandbox : this.state.sandbox;
    if (!it.started) // before the hand is asked: whoever comes next knows that the call may have happened
      await this.say(`started-${it.id}`, { $case: "toolStarted", value: { toolUseId: it.id, name: it.name, hand, sandboxId: sandbox } });
    const result = await this.execute(it, sandbox);
    if (result.outcome === ToolOutcome.TOOL_OUTCOME_GONE)
      await this.say(`detached-${sandbox}`, { $case: "handDetached", value: { hand, sandboxId: sandbox, reason: "the sandbox is gone" } });
    await this.finish(it, result);
  }

  private async execute(it: Call, sandboxId: string): Promise<ToolResult> {
    const name = it.name.split("__").at(-1)!;
    const request = { sandboxId, name, input: it.input, executionId: it.id, timeout: undefined, epoch: this.epoch, attachOnly: false };
    const execute = this.mesh.sandbox.execute.bind(this.mesh.sandbox);
    try {
      const { answer } = await this.again(() => call(execute, request, { grant: this.grant, signal: this.ended.signal }));
      return answer.result!;
    } catch (problem) {
      if (this.isOver(problem)) throw new Stopped();
      switch (codeOf(problem)) {
        case status.NOT_FOUND:
          if (reasonOf(problem) === "SANDBOX_GONE") return said("The sandbox is gone, with what was in it.", ToolOutcome.TOOL_OUTCOME_GONE);
          return said("Nobody can tell whether this call ran: it was not run again.", ToolOutcome.TOOL_OUTCOME_UNKNOWN);
        case status.INVALID_ARGUMENT:
          return said(`The hand does not take this call: ${reasonOf(problem)}`, ToolOutcome.TOOL_OUTCOME_TOOL_ERROR);
        default:
          await this.error("hand", it.id, problem);
          return said("The call failed before it could answer.", ToolOutcome.TOOL_OUTCOME_UNKNOWN);
      }
    }
  }

  private async cancel(it: Call): Promise<void> {
    const cancelExecution = this.mesh.sandbox.cancelExecution.bind(this.mesh.sandbox);
    const request = { sandboxId: it.sandbox, executionId: it.id, epoch: this.epoch };
    await this.again(() => call(cancelExecution, request, { seconds: LOOK_UP_SECONDS, grant: this.grant })).catch((problem) => {
      if (this.isOver(problem)) throw new Stopped();
      if (codeOf(problem) !== status.NOT_FOUND) throw problem; // what is gone needs no cancelling
    });
  }

  private async finish(it: Call, result: ToolResult): Promise<void> {
    await this.say(`finished-${it.id}`, { $case: "toolFinished", value: { toolUseId: it.id, result, blobs: [] } });
  }

  /** Whether a part of the mesh says that this harness is not the session's any more. */
  private isOver(problem: unknown): boolean {
    return problem instanceof Stopped || ["EPOCH_STALE", "GRANT_INVALID"].includes(reasonOf(problem));
  }
}
