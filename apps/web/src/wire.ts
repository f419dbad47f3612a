// The connection to the host: JSON-RPC over one WebSocket that reconnects by itself. A lost connection loses nothing:
// events are numbered, and requests that must not run twice carry an id.
import { signal } from "@preact/signals";

export interface AgentEvent {
  type: string;
  [field: string]: unknown;
}
export interface PlanStep {
  step: string;
  status: "pending" | "in_progress" | "completed";
}
export interface Usage {
  turn: number;
  model: string;
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  tokens_per_second: number;
  ttft_seconds: number;
  context_used: number;
  context_limit: number;
  cost?: number | null;
}
export interface Status {
  model: string;
  answering_model: string;
  workspace: string;
  running: boolean;
  turns: number;
  context_used: number;
  context_limit: number;
  sandbox: string;
  approval_policy: string;
  cost: number | null;
}
export interface Said {
  turn: number;
  kind: string;
  text: string;
}
export interface Attached {
  session: string;
  epoch: string;
  seq: number;
  status: Status;
  transcript: Said[];
  queued: string[];
  partial: string;
  waiting: AgentEvent[];
  plan: PlanStep[];
  usage: Usage[];
  worktree: string;
  branch: string;
}
export interface SessionInfo {
  session: string;
  workspace: string;
  title: string;
  model: string;
  turns: number;
  updated: number;
  live: boolean;
  running: boolean;
  waiting: number;
  clients: number;
  worktree: string;
  unjudged: number;
  parent: string; // of a subagent or a variant
}
export interface Hunk {
  id: string;
  old_start: number;
  new_start: number;
  old: string[];
  new: string[];
}
export interface FileChange {
  path: string;
  kind: "added" | "modified" | "deleted";
  old: string | null;
  new: string | null;
  hunks: Hunk[];
}
export interface Merged {
  merged: boolean;
  commit: string;
  conflicts: string[];
  text: string;
}

interface Message {
  id?: number;
  method?: string;
  params?: unknown;
  result?: unknown;
  error?: { message: string; data?: { hint?: string } };
}
interface Waiting {
  resolve: (value: unknown) => void;
  reject: (error: Error) => void;
  before?: (value: unknown) => void;
}

const FRAME_MS = 15; // batch events: a screen shows no more than one update per frame

export class Lost extends Error {}

/** A session's follower: receives its events, and remembers where to continue after a lost connection. */
export interface Follower {
  session: string;
  epoch: string;
  seq: number;
  restart(attached: Attached): void;
  take(seq: number, event: AgentEvent): void;
  closed(): void;
}

/** How a session reaches the host: its own socket here, the extension's in VS Code. */
export interface Link {
  call<T>(method: string, params?: object, again?: boolean): Promise<T>;
  follow(follower: Follower): Promise<void>;
  /** Whether the connection is currently lost. */
  lost?(): boolean;
}

const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));
export const newId = (): string => crypto.randomUUID();

export class Host implements Link {
  readonly state = signal<"connecting" | "open" | "lost" | "out">("connecting");
  readonly live = signal<SessionInfo[]>([]);
  private socket: WebSocket | undefined;
  private opened: (() => void)[] = [];
  private readonly waiting = new Map<number, Waiting>();
  private readonly followers = new Map<string, Follower>();
  private count = 0;

  /** Connect, and reconnect whenever the connection is lost, until the login has ended. */
  async run(): Promise<void> {
    for (let failed = 0; ; failed++) {
      const wait = pause(Math.min(3000, 100 * 2 ** failed)); // the least time between two attempts
      const login = await fetch("/login").then((answer) => answer.status, () => 0);
      if (login === 403) {
        this.state.value = "out";
        return;
      }
      if (login === 200 && (await this.connected())) failed = 0;
      if (this.state.value === "open") this.state.value = "lost";
      await wait;
    }
  }

  /** Run one connection from opening to end; resolves to whether it was ever open. */
  private connected(): Promise<boolean> {
    return new Promise((end) => {
      const socket = new WebSocket(`ws://${location.host}/host`, "fulgur.host");
      let open = false;
      socket.onopen = () => {
        open = true;
        this.socket = socket;
        this.state.value = "open";
        this.send("board.follow", {}).catch(() => undefined);
        for (const follower of this.followers.values()) this.reattach(follower);
        for (const go of this.opened.splice(0)) go();
      };
      socket.onmessage = (message) => this.take(JSON.parse(String(message.data)) as Message);
      socket.onclose = () => {
        this.socket = undefined;
        for (const one of this.waiting.values()) one.reject(new Lost("the connection to the host was lost"));
        this.waiting.clear();
        end(open);
      };
    });
  }

  private reattach(follower: Follower): void {
    const after = { session: follower.session, after: follower.seq, epoch: follower.epoch, frame_ms: FRAME_MS };
    const before = (value: unknown): void => {
      const told = value as Attached;
      if (told.epoch !== follower.epoch || told.seq !== follower.seq) follower.restart(told);
    };
    this.send("session.attach", after, before).catch((error: unknown) => {
      if (!(error instanceof Lost)) follower.closed();
    });
  }

  private take(message: Message): void {
    if (message.method === undefined) {
      const one = this.waiting.get(message.id ?? -1);
      this.waiting.delete(message.id ?? -1);
      if (message.error) one?.reject(new Error([message.error.message, message.error.data?.hint].filter(Boolean).join(". ")));
      else {
        one?.before?.(message.result); // before any later event is read
        one?.resolve(message.result);
      }
      return;
    }
    const params = message.params as { session: string; seq: number; events: AgentEvent[] } & Attached & { sessions: SessionInfo[] };
    if (message.method === "events") {
      const follower = this.followers.get(params.session);
      params.events.forEach((event, n) => follower?.take(params.seq + n, event));
    }
    if (message.method === "resync") this.followers.get(params.session)?.restart(params);
    else if (message.method === "closed") this.followers.get(params.session)?.closed();
    else if (message.method === "board") this.live.value = params.sessions;
  }

  private send(method: string, params: object, before?: (value: unknown) => void): Promise<unknown> {
    const socket = this.socket;
    if (!socket || socket.readyState !== WebSocket.OPEN) return Promise.reject(new Lost("there is no connection to the host"));
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, before });
      socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
    });
  }

  lost(): boolean {
    return this.state.value === "lost";
  }

  private async ready(): Promise<void> {
    if (this.state.value !== "open") await new Promise<void>((go) => this.opened.push(go));
  }

  /** Call the host. `again`: it is safe to repeat the call if the connection is lost in between. */
  async call<T>(method: string, params: object = {}, again = false): Promise<T> {
    for (;;) {
      await this.ready();
      try {
        return (await this.send(method, params)) as T;
      } catch (error) {
        if (!again || !(error instanceof Lost)) throw error;
      }
    }
  }

  /** Follow a session by its id. */
  async follow(follower: Follower): Promise<void> {
    this.followers.set(follower.session, follower);
    await this.ready();
    await this.send("session.attach", { session: follower.session, frame_ms: FRAME_MS }, (value) => follower.restart(value as Attached));
  }

  unfollow(follower: Follower): void {
    this.followers.delete(follower.session);
    this.send("session.detach", { session: follower.session }).catch(() => undefined);
  }
}
