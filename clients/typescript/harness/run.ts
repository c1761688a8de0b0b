// One session at work: asks `decide` what to do, does it, says what happened, again. What takes time runs beside that.

import { createHash, randomUUID } from "node:crypto";
import { status } from "@grpc/grpc-js";
import {
  CancelExecutionRequest,
  ExecuteRequest,
  ListToolsRequest,
  ProvisionRequest,
  type SandboxServiceClient,
} from "../stubs/handmesh/sandbox/v1/sandbox.js";
import { ToolOutcome, type ToolResult } from "../stubs/handmesh/sandbox/v1/tool.js";
import { TurnEndReason } from "../stubs/handmesh/session/v1/event.js";
import { type SessionServiceClient } from "../stubs/handmesh/session/v1/session.js";
import { type Action, type Call, type Piece, decide, said } from "./core.js";
import { Journal, Stopped } from "./journal.js";
import { call, codeOf, reasonOf } from "./rpc.js";

const LOOK_UP_SECONDS = 10;
const PROVISION_SECONDS = 300;

export interface Mesh {
  session: SessionServiceClient;
  sandbox: SandboxServiceClient;
}

export class Run {
  private readonly journal: Journal;
  private readonly running = new Set<string>(); // what goes on beside: a call's id, among others

  constructor(
    private readonly mesh: Mesh,
    sessionId: string,
    private readonly harness: string,
    private readonly instance: string,
  ) {
    this.journal = new Journal(mesh.session, sessionId);
  }

  /** Works until there is nothing to do. Throws what makes it impossible; then another harness should try. */
  async work(): Promise<void> {
    const { journal } = this;
    try {
      for (;;) {
        await journal.caughtUp();
        const action = decide(journal.state, this.harness);
        const head = journal.state.head;
        if (action.kind === "rest") return;
        if (!journal.epoch) await journal.takeUp(this.harness, this.instance);
        else if (!(await this.act(action))) await journal.reach(head + 1);
      }
    } catch (problem) {
      if (!(problem instanceof Stopped)) throw problem;
    } finally {
      journal.close();
    }
  }

  /** Does or begins what was decided. Tells whether it is done; else an event will tell how it ended. */
  private async act(action: Exclude<Action, { kind: "rest" }>): Promise<boolean> {
    switch (action.kind) {
      case "reply":
        await this.reply(action.pieces);
        return true;
      case "end turn":
        await this.endTurn(action.reason, action.read);
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
    }
  }

  private begin(key: string, work: () => Promise<void>): void {
    if (this.running.has(key)) return;
    this.running.add(key);
    void work()
      .catch((problem) => this.journal.fail(problem))
      .finally(() => this.running.delete(key));
  }

  private async reply(pieces: Piece[]): Promise<void> {
    const blocks = pieces.map((it) => (it.type === "tool_use" ? { ...it, id: `toolu_${randomUUID()}` } : it));
    const value = {
      contentJson: JSON.stringify(blocks),
      stopReason: blocks.some((block) => block.type === "tool_use") ? "tool_use" : "end_turn",
      readPosition: this.journal.state.head,
      model: this.harness,
    };
    await this.journal.propose("reply", { $case: "modelReplied", value });
  }

  private async endTurn(reason: TurnEndReason, read: number): Promise<void> {
    const value = { reason, readPosition: read, stopReason: "end_turn" };
    await this.journal.propose("ended", { $case: "turnEnded", value });
  }

  private async lookUp(): Promise<void> {
    const { state, epoch } = this.journal;
    const { hand, environment } = state;
    const id = `offered-${epoch}-${state.head}-${hand}`;
    const offer = (toolsJson: string, digest: string) =>
      this.journal.say(id, { $case: "toolsOffered", value: { hand, toolsJson, digest } });
    let tools;
    try {
      const asked = ListToolsRequest.create({ of: { $case: "environment", value: environment } });
      const ask = () => call(this.mesh.sandbox, "listTools", asked, { seconds: LOOK_UP_SECONDS });
      tools = (await this.journal.again(ask)).answer.tools;
    } catch (problem) {
      if (problem instanceof Stopped) throw problem;
      await offer("[]", ""); // without a digest: the next turn asks again
      await this.journal.error("hand", hand, problem);
      return;
    }
    const offered = tools.map(({ name, description, inputSchemaJson }) => ({
      name: state.shown(name),
      description,
      input_schema: JSON.parse(inputSchemaJson),
    }));
    const toolsJson = JSON.stringify(offered);
    await offer(toolsJson, createHash("sha256").update(toolsJson).digest("hex"));
  }

  private async provision(): Promise<void> {
    const { state, epoch, grant, signal, sessionId } = this.journal;
    const { hand, environment, calls } = state;
    const generation = state.generation + 1;
    const requestId = `${sessionId}/${hand}/${generation}`; // whoever comes after this one finds the same sandbox by it
    const { resources } = state.spec;
    const request = ProvisionRequest.create({ environment, resources, requestId, sessionId, epoch, hand });
    try {
      const ask = () => call(this.mesh.sandbox, "provision", request, { seconds: PROVISION_SECONDS, grant, signal });
      const made = (await this.journal.again(ask)).answer.sandbox!;
      const { sandboxId, unenforcedLimits } = made;
      const value = { hand, sandboxId, environment: made.environment, generation, unenforcedLimits };
      await this.journal.say(`provisioned-${hand}-${generation}`, { $case: "sandboxProvisioned", value });
    } catch (problem) {
      if (isOver(problem)) throw new Stopped();
      await this.journal.error("hand", hand, problem);
      const result = said(`The hand could not be made: ${reasonOf(problem)}`, ToolOutcome.TOOL_OUTCOME_TOOL_ERROR);
      for (const each of calls.values()) if (!each.result && !each.started) await this.finish(each, result);
    }
  }

  private async runCall(it: Call): Promise<void> {
    const { hand, sandbox: current } = this.journal.state;
    const sandboxId = it.started ? it.sandbox : current;
    // Before the hand is asked: so whoever comes after this one knows that the call may have happened.
    const value = { toolUseId: it.id, name: it.name, hand, sandboxId };
    if (!it.started) await this.journal.say(`started-${it.id}`, { $case: "toolStarted", value });
    const result = await this.execute(it, sandboxId);
    if (result.outcome === ToolOutcome.TOOL_OUTCOME_GONE) {
      const gone = { hand, sandboxId, reason: "the sandbox is gone" };
      await this.journal.say(`detached-${sandboxId}`, { $case: "handDetached", value: gone });
    }
    await this.finish(it, result);
  }

  /** Runs a call, or waits for the one that runs by its id already, and returns what came of it. */
  private async execute(it: Call, sandboxId: string): Promise<ToolResult> {
    const { epoch, grant, signal } = this.journal;
    const name = it.name.split("__").at(-1)!;
    const request = ExecuteRequest.create({ sandboxId, name, input: it.input, executionId: it.id, epoch });
    try {
      const ask = () => call(this.mesh.sandbox, "execute", request, { grant, signal });
      return (await this.journal.again(ask)).answer.result!;
    } catch (problem) {
      if (isOver(problem)) throw new Stopped();
      const reason = reasonOf(problem);
      if (reason === "SANDBOX_GONE")
        return said("The sandbox is gone, with what was in it.", ToolOutcome.TOOL_OUTCOME_GONE);
      if (reason === "EXECUTION_UNKNOWN")
        return said("Nobody can tell whether this call ran.", ToolOutcome.TOOL_OUTCOME_UNKNOWN);
      if (codeOf(problem) === status.INVALID_ARGUMENT)
        return said(`The hand does not take this call: ${reason}`, ToolOutcome.TOOL_OUTCOME_TOOL_ERROR);
      await this.journal.error("hand", it.id, problem);
      return said("The call failed before it could answer.", ToolOutcome.TOOL_OUTCOME_UNKNOWN);
    }
  }

  /** Kills a call. How it ended is what `execute` is told. */
  private async cancel(it: Call): Promise<void> {
    const { epoch, grant } = this.journal;
    const request = CancelExecutionRequest.create({ sandboxId: it.sandbox, executionId: it.id, epoch });
    const ask = () => call(this.mesh.sandbox, "cancelExecution", request, { seconds: LOOK_UP_SECONDS, grant });
    await this.journal.again(ask).catch((problem) => {
      if (isOver(problem)) throw new Stopped();
      if (codeOf(problem) !== status.NOT_FOUND) throw problem; // what is gone needs no cancelling
    });
  }

  private async finish(it: Call, result: ToolResult): Promise<void> {
    const value = { toolUseId: it.id, result };
    await this.journal.say(`finished-${it.id}`, { $case: "toolFinished", value });
  }
}

/** Whether a part of the mesh says that this harness is not the session's any more. */
function isOver(problem: unknown): boolean {
  return problem instanceof Stopped || ["EPOCH_STALE", "GRANT_INVALID"].includes(reasonOf(problem));
}
