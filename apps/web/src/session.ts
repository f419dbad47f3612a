// One session as it is shown: a list of entries that events extend, at most once per frame.
import { batch, signal } from "@preact/signals";
import { inNextFrame } from "./frame";
import { type Block, read, settled } from "./markdown";
import { exact } from "./text";
import { type AgentEvent, type Attached, type FileChange, type Follower, type Link, Lost, type Merged, newId, type PlanStep, type Said, type Status, type Usage } from "./wire";

export interface Variant {
  number: number;
  passes: boolean;
  reasons: string[];
  diff: string;
  text?: string;
  models?: string[];
  seconds?: number;
}
export interface Entry {
  key: number;
  kind: "user" | "steer" | "text" | "thought" | "tool" | "note" | "bad" | "diff" | "variants";
  text: string; // for an answer: what follows its finished blocks
  rev: number; // increases with every change, so that only changed entries are redrawn
  open?: boolean;
  title?: string;
  ok?: boolean;
  seconds?: number;
  variants?: Variant[];
  runs?: Block[][]; // blocks of an answer that cannot change any more; all runs but the last are full
}

const MOST_OUTPUT = 100_000; // characters of one tool's output kept for the screen
const kinds: Record<string, Entry["kind"]> = { user: "user", steer: "steer", assistant: "text", reasoning: "thought", tool: "tool", diff: "diff" };

const RUN = 24; // blocks: enough that a long answer has few runs, few enough that the last one is drawn quickly

/** The blocks of an answer in runs. A full run stays the same array and is not redrawn. */
export function runsOf(entry: Entry): Block[][] {
  const runs = (entry.runs ??= [[]]);
  const found = read(entry.text, 0);
  const closed = found.splice(0, entry.open ? settled(entry.text, found) : found.length);
  for (const { block } of closed) {
    if (runs[runs.length - 1]!.length === RUN) runs.push([]);
    runs[runs.length - 1]!.push(block);
  }
  entry.text = entry.text.slice(closed[closed.length - 1]?.end ?? 0);
  const last = runs[runs.length - 1]!;
  const open = found.map(({ block }) => block);
  return last.length === RUN ? [...runs, open] : [...runs.slice(0, -1), [...last, ...open]];
}

export class Session implements Follower {
  epoch = "";
  seq = 0;
  entries: Entry[] = [];
  usage: Usage[] = [];
  readonly version = signal(0);
  readonly title = signal(""); // the first prompt
  readonly loaded = signal(false);
  readonly gone = signal(false); // it can only be read
  readonly ended = signal(false); // by somebody else; the next prompt reopens it
  readonly running = signal(false);
  readonly since = signal(0); // when the running turn was first seen
  readonly status = signal<Status | undefined>(undefined);
  readonly waiting = signal<AgentEvent[]>([]);
  readonly plan = signal<PlanStep[]>([]);
  readonly queued = signal<string[]>([]);
  readonly returned = signal(""); // a withdrawn prompt, for the composer
  readonly changes = signal<FileChange[]>([]);
  readonly speed = signal<Usage | undefined>(undefined);
  readonly worktree = signal<{ folder: string; branch: string } | undefined>(undefined);
  readonly spoken = signal(""); // for screen readers: what was finished last
  private key = 0;
  private events: AgentEvent[] = [];
  private looking = 0;
  private readonly calls = new Map<string, Entry>();

  constructor(
    readonly host: Link,
    readonly session: string,
  ) {
    host.follow(this).catch((error: unknown) => {
      if (error instanceof Lost) return; // it is reattached with the next connection
      void this.readOnly(error);
    });
  }

  /** Show why the session cannot continue; its transcript can still be read. */
  private async readOnly(why: unknown): Promise<void> {
    this.gone.value = true;
    const said = await this.ask<Said[]>("session.read").catch(() => []);
    for (const entry of said) this.add(kinds[entry.kind] ?? "note", entry.text);
    this.loaded.value = true;
    this.add("note", why instanceof Error ? why.message : String(why));
    this.version.value++;
  }

  // ---- what the host sends --------------------------------------------------------------------------------

  restart(attached: Attached): void {
    this.events = [];
    this.calls.clear();
    this.epoch = attached.epoch;
    this.seq = attached.seq;
    this.entries = [];
    this.title.value = "";
    for (const entry of attached.transcript) this.add(kinds[entry.kind] ?? "note", entry.text);
    if (attached.partial) this.add("text", attached.partial).open = true;
    this.usage = [...attached.usage];
    batch(() => {
      this.status.value = attached.status;
      this.plan.value = attached.plan;
      this.queued.value = attached.queued;
      this.waiting.value = attached.waiting;
      this.speed.value = this.usage[this.usage.length - 1];
      this.worktree.value = attached.worktree ? { folder: attached.worktree, branch: attached.branch } : undefined;
      this.setRunning(attached.status.running);
      this.loaded.value = true;
      this.gone.value = this.ended.value = false;
      this.version.value++;
    });
    this.look();
  }

  take(seq: number, event: AgentEvent): void {
    if (seq !== this.seq + 1) return; // already seen before the connection was lost
    this.seq = seq;
    this.events.push(event);
    inNextFrame(this.flush);
  }

  closed(): void {
    this.flush();
    this.ended.value = true;
    this.waiting.value = [];
    this.setRunning(false);
  }

  private readonly flush = (): void => {
    const events = this.events;
    this.events = [];
    if (!events.length) return;
    batch(() => {
      for (const event of events) this.apply(event);
      this.version.value++;
    });
  };

  // ---- what the person requests ---------------------------------------------------------------------------

  async submit(text: string, how: "steer" | "queue" = "steer"): Promise<void> {
    if (this.host.lost?.()) throw new Lost("There is no connection to the host; nothing was sent.");
    if (this.ended.value) await this.host.follow(this);
    const program = /^\/(variants|tasks|plan|take)\b/.test(text);
    if (program) await this.ask("session.program", { text });
    else if (text === "/undo") await this.ask("session.undo");
    else if (text === "/compact") await this.ask("session.compact");
    else if (text.startsWith("!")) await this.ask("session.shell", { command: text.slice(1) });
    else await this.host.call("turn.submit", { session: this.session, text, how, message: newId() }, true);
  }

  async ask<T>(method: string, params: object = {}): Promise<T> {
    return this.host.call<T>(method, { session: this.session, ...params });
  }

  /** Send a request that is answered by events; errors are shown. */
  tell(method: string, params: object = {}): void {
    this.ask(method, params).catch((error: unknown) => this.problem(error));
  }

  /** Take a queued prompt back into the composer, unless its turn has begun meanwhile. */
  withdraw(text: string): void {
    this.ask<boolean>("turn.withdraw", { text }).then(
      (done) => done && (this.returned.value = text),
      (error: unknown) => this.problem(error),
    );
  }

  async judge(accept: boolean, path?: string, hunk?: string): Promise<void> {
    try {
      await this.ask(accept ? "changes.accept" : "changes.reject", { path: path ?? null, hunk: hunk ?? null });
    } catch (error) {
      this.problem(error);
    }
    this.look();
  }

  merge(): Promise<Merged> {
    return this.ask<Merged>("worktree.merge");
  }

  problem(error: unknown): void {
    this.add("bad", error instanceof Error ? error.message : String(error));
    this.version.value++;
  }

  /** Load the changes that wait for a decision, no more often than a person can notice. */
  look(): void {
    if (this.looking) return;
    this.looking = window.setTimeout(() => {
      this.looking = 0;
      this.ask<FileChange[]>("changes.list").then(
        (found) => (this.changes.value = found),
        () => undefined,
      );
    }, 150);
  }

  // ---- events ---------------------------------------------------------------------------------------------

  private setRunning(now: boolean): void {
    if (now !== this.running.value) this.since.value = Date.now();
    this.running.value = now;
  }

  private add(kind: Entry["kind"], text: string, more: Partial<Entry> = {}): Entry {
    this.close();
    const entry: Entry = { key: ++this.key, kind, text, rev: 0, ...more };
    this.entries.push(entry);
    if (kind === "user") this.title.value ||= text;
    return entry;
  }

  /** Close the entry that is being written; tools and variants have their own end events. */
  private close(kind?: Entry["kind"]): void {
    const last = kind ? this.entries.findLast((entry) => entry.kind === kind) : this.entries[this.entries.length - 1];
    if (last?.open && (kind || (last.kind !== "tool" && last.kind !== "variants"))) {
      last.open = false;
      last.rev++;
    }
  }

  private write(kind: "text" | "thought", text: string): void {
    let last = this.entries[this.entries.length - 1];
    if (!last?.open || last.kind !== kind) last = this.add(kind, "", { open: true });
    last.text += text;
    last.rev++;
  }

  private apply(event: AgentEvent): void {
    const text = String(event["text"] ?? "");
    switch (event.type) {
      case "turn.started":
        this.add("user", text);
        this.setRunning(true);
        break;
      case "steered":
        this.add("steer", text);
        break;
      case "text.delta":
        this.write("text", text);
        break;
      case "reasoning.delta":
        this.write("thought", text);
        break;
      case "tool.started":
        this.calls.set(String(event["call_id"]), this.add("tool", "", { title: String(event["title"]), open: true }));
        break;
      case "tool.output": {
        const call = this.calls.get(String(event["call_id"]));
        if (call && call.text.length < MOST_OUTPUT) {
          call.text += text;
          call.rev++;
        }
        break;
      }
      case "tool.finished": {
        const call = this.calls.get(String(event["call_id"]));
        if (!call) break;
        call.open = false;
        call.ok = Boolean(event["ok"]);
        call.seconds = Number(event["seconds"] ?? 0);
        call.text ||= String(event["output"] ?? "").slice(0, MOST_OUTPUT);
        call.rev++;
        break;
      }
      case "approval.asked":
        this.waiting.value = [...this.waiting.value, event];
        this.spoken.value = `Asks for approval: ${String(event["title"])}`;
        break;
      case "approval.settled":
        this.waiting.value = this.waiting.value.filter((one) => one["approval_id"] !== event["approval_id"]);
        if (event["decision"] === "deny") this.add("note", "Denied.");
        break;
      case "plan":
        this.plan.value = event["steps"] as PlanStep[];
        break;
      case "file.changed":
        this.add("diff", String(event["diff"]), { title: String(event["path"]) });
        this.look();
        break;
      case "guard.reported": {
        const problems = (event["problems"] as string[] | undefined) ?? [];
        if (problems.length) this.add("bad", `${String(event["check"])}: ${problems.join("; ")}`);
        break;
      }
      case "warning":
        if (!event["quiet"]) this.add("note", [event["message"], event["hint"]].filter(Boolean).join(". "));
        break;
      case "queue":
        this.queued.value = event["prompts"] as string[];
        break;
      case "usage":
        this.usage.push(event as unknown as Usage);
        this.speed.value = event as unknown as Usage;
        break;
      case "routed":
        this.add("note", `${String(event["model"])}: ${String(event["why"])}`);
        break;
      case "compacted":
        this.add("note", `The context was summarised: ${String(event["before_tokens"])} → ${String(event["after_tokens"])} tokens.`);
        break;
      case "undone":
      case "judged": {
        const paths = exact((event["paths"] as string[]).join(", "));
        this.add("note", `${event.type === "undone" ? "Undone" : event["accepted"] ? "Kept" : "Rejected"}: ${paths}`);
        this.look();
        break;
      }
      case "member.started":
        this.add("note", `${String(event["member"])} (${String(event["model"])}) begins: ${String(event["task"])}`);
        break;
      case "member.finished":
        this.add(event["how"] === "done" ? "note" : "bad", `${String(event["member"])} is ${String(event["how"])}: ${text}`);
        break;
      case "model":
        if (this.status.value) this.status.value = { ...this.status.value, model: String(event["model"]) };
        break;
      case "variants": {
        const variants = (event["variants"] as Variant[] | undefined) ?? [];
        if (variants.length) this.add("variants", String(event["task"]), { variants, open: true });
        else this.close("variants"); // one was taken, or none
        break;
      }
      case "turn.done":
      case "turn.stopped":
      case "turn.failed":
        this.close();
        if (event.type === "turn.stopped") this.add("note", "Stopped.");
        if (event.type === "turn.failed") this.add("bad", [event["message"], event["hint"]].filter(Boolean).join(". "));
        this.spoken.value = event.type === "turn.done" ? text.slice(0, 600) : event.type === "turn.stopped" ? "Stopped." : `Failed: ${String(event["message"])}`;
        this.waiting.value = [];
        this.setRunning(false);
        this.look();
        break;
    }
  }
}
