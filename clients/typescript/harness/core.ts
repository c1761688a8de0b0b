// What the log says, and what happens next: `decide(fold(log))`. Pure: no clock, no network, no randomness.

import { ToolOutcome, ToolResult } from "../stubs/handmesh/sandbox/v1/tool.js";
import { HandSpec, SessionConfig, ToolPolicyAction } from "../stubs/handmesh/session/v1/config.js";
import { type Event, TurnEndReason } from "../stubs/handmesh/session/v1/event.js";

const MAX_TEXT = 128 * 1024; // characters that one reply says: it has to fit into an event, whatever they are

/** A tool call of a reply. `input` is JSON. */
export interface Call {
  id: string;
  name: string;
  input: string;
  started: boolean;
  sandbox: string; // where it was started
  result?: ToolResult;
  finishedAt: number;
}

/** A piece of a reply: text, or a tool call that has no id yet. */
export type Piece = { type: "text"; text: string } | { type: "tool_use"; name: string; input: object };

export type Action =
  | { kind: "rest" } // nothing to do until something happens
  | { kind: "look up tools" }
  | { kind: "reply"; pieces: Piece[] } // what a model is asked for elsewhere: here it follows from the log
  | { kind: "run"; calls: Call[]; provision: boolean } // also what runs already: by the call's id it runs once
  | { kind: "finish"; call: Call; result: ToolResult } // without any hand
  | { kind: "cancel"; calls: Call[] } // kill what runs; how it ended is what `run` is told
  | { kind: "end turn"; reason: TurnEndReason; read: number };

/** The log of one session, as far as this harness type has to know it. */
export class State {
  head = 0; // position of the last event
  woke = 0; // position of the last HarnessWoke: the epoch
  config: SessionConfig = SessionConfig.create();
  next?: SessionConfig; // from the end of the open turn on
  messages: { position: number; text: string }[] = [];
  read = 0; // what the last reply or turn has dealt with
  settled = 0; // what turns have dealt with that have ended
  replied = false; // since then
  interrupt = 0; // position of an interrupt that was not obeyed yet
  over = false; // the session has ended, or holds what this harness does not know
  offer?: { position: number; names: string[]; failed: boolean };
  sandbox = ""; // of the hand; empty when there is none
  generation = 0; // of the sandboxes that the hand has had
  calls = new Map<string, Call>();

  /** The hand that this type works with: the first by name. */
  get hand(): string {
    return this.config.noHands ? "" : (Object.keys(this.config.hands).sort()[0] ?? "main");
  }

  get spec(): HandSpec {
    return this.config.hands[this.hand] ?? HandSpec.create();
  }

  get environment(): string {
    return this.spec.source?.$case === "environment" ? this.spec.source.value : "";
  }

  /** What the model calls a tool of the hand: with the hand's name where a session has several hands. */
  shown(tool: string): string {
    return Object.keys(this.config.hands).length > 1 ? `${this.hand}__${tool}` : tool;
  }

  /** Takes the next event of the log. */
  fold(event: Event): void {
    this.head = event.position;
    const it = event.kind;
    switch (it?.$case) {
      case undefined:
        this.over ||= !event.ignorable; // of a later version: whoever does not know it must not go on
        break;
      case "sessionStarted":
        this.apply(it.value.config);
        break;
      case "configChanged": // it holds from the next turn on; a turn without an answer goes to another type at once
        if (this.turnOpen && (this.replied || it.value.config?.harness === this.config.harness))
          this.next = it.value.config;
        else this.apply(it.value.config);
        break;
      case "messageReceived":
        this.messages.push({ position: this.head, text: textOf(it.value.contentJson) });
        break;
      case "interruptRequested":
        if (this.turnOpen) this.interrupt = this.head;
        break;
      case "harnessWoke":
        this.woke = this.head;
        break;
      case "toolsOffered":
        if (it.value.hand !== this.hand) break;
        const names = (JSON.parse(it.value.toolsJson) as { name: string }[]).map((tool) => tool.name);
        this.offer = { position: this.head, names, failed: !it.value.digest };
        break;
      case "modelReplied":
        this.read = it.value.readPosition;
        this.replied = true;
        this.calls.clear(); // those of the reply before are settled: else there would be no other reply
        for (const block of JSON.parse(it.value.contentJson))
          if (block.type === "tool_use")
            this.calls.set(block.id, {
              id: block.id,
              name: block.name,
              input: JSON.stringify(block.input),
              started: false,
              sandbox: "",
              finishedAt: 0,
            });
        break;
      case "sandboxProvisioned":
        if (it.value.hand === this.hand) [this.sandbox, this.generation] = [it.value.sandboxId, it.value.generation];
        break;
      case "handDetached":
        if (it.value.sandboxId === this.sandbox) this.sandbox = "";
        break;
      case "toolStarted":
        this.change(it.value.toolUseId, { started: true, sandbox: it.value.sandboxId });
        break;
      case "toolFinished":
        this.change(it.value.toolUseId, { result: it.value.result, finishedAt: this.head });
        break;
      case "turnEnded":
        this.settled = Math.max(this.settled, it.value.readPosition);
        this.read = Math.max(this.read, this.settled);
        this.replied = false;
        if (this.settled >= this.interrupt || !this.turnOpen) this.interrupt = 0;
        if (this.next) this.apply(this.next);
        break;
      case "sessionEnded":
      case "sessionArchived":
        this.over = true;
        break;
      case "sessionRestored":
        this.over = false;
        break;
    }
  }

  private apply(config: SessionConfig | undefined): void {
    const before = JSON.stringify([this.hand, this.spec]);
    [this.config, this.next, this.offer] = [config ?? this.config, undefined, undefined];
    if (JSON.stringify([this.hand, this.spec]) !== before) this.sandbox = ""; // the next call gets another one
  }

  get turnOpen(): boolean {
    return (this.messages.at(-1)?.position ?? 0) > this.settled;
  }

  private change(id: string, change: Partial<Call>): void {
    const call = this.calls.get(id);
    if (call) Object.assign(call, change);
  }
}

/** Says what to do next. Asked again after every event. */
export function decide(state: State, harness: string): Action {
  if (state.over || !state.turnOpen) return { kind: "rest" };
  const open = [...state.calls.values()].filter((call) => !call.result);
  if (state.interrupt) {
    const idle = open.find((call) => !call.started);
    if (idle)
      return {
        kind: "finish",
        call: idle,
        result: said("The turn was interrupted before this call ran.", ToolOutcome.TOOL_OUTCOME_INTERRUPTED),
      };
    if (open.length) return { kind: "cancel", calls: open };
    return { kind: "end turn", reason: TurnEndReason.TURN_END_REASON_INTERRUPTED, read: state.interrupt };
  }
  if (state.config.harness !== harness) return { kind: "rest" }; // it was moved to another type
  for (const call of open)
    if (!call.started && !allowed(state.config, call.name))
      return {
        kind: "finish",
        call,
        result: said("A policy of this session forbids this tool.", ToolOutcome.TOOL_OUTCOME_DENIED),
      };
  const ready = open.filter((call) => call.started || state.sandbox);
  if (open.length) return { kind: "run", calls: ready, provision: ready.length < open.length };

  const results = [...state.calls.values()].filter((call) => call.finishedAt > state.read);
  const messages = state.messages.filter((message) => message.position > state.read);
  if (state.replied && !results.length && !messages.length)
    return { kind: "end turn", reason: TurnEndReason.TURN_END_REASON_DONE, read: state.head };
  if (state.hand && (!state.offer || (state.offer.failed && state.offer.position <= state.settled)))
    return { kind: "look up tools" };
  const room = Math.floor(MAX_TEXT / (results.length + messages.length));
  const pieces = results.map((call) => text(call.result?.output ?? "", room));
  return { kind: "reply", pieces: [...pieces, ...messages.map((message) => answer(state, message.text, room))] };
}

/** The brain: `run: CMD` is a call of `bash`, everything else is repeated. */
function answer(state: State, message: string, room: number): Piece {
  const command = /^run:\s*(.*)$/s.exec(message)?.[1];
  if (command === undefined || command.length > room) return text(message, room);
  const name = state.shown("bash");
  if (!state.offer?.names.includes(name)) return text("This session has no hand that offers bash.", room);
  return { type: "tool_use", name, input: { command } };
}

/** Whether a call may run without asking: this type asks nobody, so what a person has to decide does not run. */
function allowed(config: SessionConfig, name: string): boolean {
  const bare = name.split("__").at(-1) ?? name;
  const pattern = (wanted: string) =>
    new RegExp(
      `^${wanted
        .split("*")
        .map((part) => part.replace(/[^\w]/g, "\\$&"))
        .join(".*")}$`,
    );
  const policy = config.toolPolicies.find(
    (each) => pattern(each.pattern).test(name) || pattern(each.pattern).test(bare),
  );
  return !policy || policy.action === ToolPolicyAction.TOOL_POLICY_ACTION_ALLOW;
}

export function said(output: string, outcome: ToolOutcome): ToolResult {
  return ToolResult.create({ output, outcome });
}

function text(whole: string, room: number): Piece {
  if (whole.length <= room) return { type: "text", text: whole || "(nothing)" };
  const head = whole.slice(0, room).replace(/[\ud800-\udbff]$/, ""); // never half a character
  return { type: "text", text: `${head} [... ${whole.length - head.length} characters more]` };
}

function textOf(contentJson: string): string {
  const blocks = JSON.parse(contentJson) as { type: string; text?: string }[];
  return blocks.map((block) => (block.type === "text" ? block.text : `[${block.type}]`)).join("\n");
}
