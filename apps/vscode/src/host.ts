// The host of agents over its WebSocket: found by its note, or started. A lost connection is restored, and nothing is
// requested twice.
import type { AgentEvent, Attached } from "../../web/src/wire";
import { launch, note, pause } from "./server";

interface Waiting {
  before: (value: never) => void;
  resolve: (value: never) => void;
  reject: (error: Error) => void;
}

export class Host {
  /** Events of the shown session, and a snapshot of it if some were missed. */
  onEvent: (event: AgentEvent, seq: number) => void = () => undefined;
  onAttached: (attached: Attached) => void = () => undefined;
  private socket: Promise<WebSocket> | undefined;
  private readonly waiting = new Map<number, Waiting>();
  private count = 0;
  private shown: { session: string; epoch: string; seq: number } | undefined;
  private closed = false;
  private ended = false; // the shown session, by somebody else

  private async connect(): Promise<WebSocket> {
    for (let n = 0; n < 200; n++) {
      const found = await note("host.json");
      if (found?.["url"]) {
        const socket = await open(found["url"], found["token"] ?? "");
        if (socket) return this.listen(socket);
      }
      if (n === 0) await launch("host", "--idle-exit", "60");
      await pause(100);
    }
    throw new Error(`The host of agents did not start. Run "fulgur host" in a terminal to see why.`);
  }

  private listen(socket: WebSocket): WebSocket {
    socket.onmessage = (message) => this.take(JSON.parse(String(message.data)) as Message);
    socket.onclose = () => {
      this.socket = undefined;
      for (const one of this.waiting.values()) one.reject(new Error("the connection to the host was lost"));
      this.waiting.clear();
      if (this.shown && !this.closed) setTimeout(() => void this.returns().catch(() => undefined), 200);
    };
    return socket;
  }

  private async returns(): Promise<void> {
    const shown = this.shown;
    if (!shown) return;
    await this.call<Attached>("session.attach", { session: shown.session, after: shown.seq, epoch: shown.epoch }, (attached) => {
      if (attached.epoch !== shown.epoch || attached.seq !== shown.seq) this.onAttached(attached);
    });
  }

  private take(message: Message): void {
    if (message.id !== undefined && !message.method) {
      const one = this.waiting.get(message.id);
      this.waiting.delete(message.id);
      if (message.error) one?.reject(new Error([message.error.message, message.error.data?.hint].filter(Boolean).join(" ")));
      else {
        const result = message.result as Attached | undefined;
        if (result?.epoch && result.session) {
          this.shown = { session: result.session, epoch: result.epoch, seq: result.seq };
          this.ended = false;
        }
        one?.before(message.result as never);
        one?.resolve(message.result as never);
      }
      return;
    }
    const params = message.params as { session: string; seq: number; event: AgentEvent } & Attached;
    if (params?.session !== this.shown?.session || !this.shown) return;
    if (message.method === "event" && params.seq === this.shown.seq + 1) {
      this.shown.seq = params.seq;
      this.onEvent(params.event, params.seq);
    } else if (message.method === "resync") {
      this.shown = { session: params.session, epoch: params.epoch, seq: params.seq };
      this.onAttached(params);
    } else if (message.method === "closed") this.ended = true;
  }

  /** `before` gets the answer before any later event is read. */
  async call<T>(method: string, params: Record<string, unknown>, before: (value: T) => void = () => undefined): Promise<T> {
    if (this.ended && params["session"] === this.shown?.session) {
      this.ended = false; // reopen it: whoever asks for a turn must hear of it
      await this.call<Attached>("session.attach", { session: params["session"] }, (attached) => this.onAttached(attached));
    }
    this.socket ??= this.connect();
    let socket: WebSocket;
    try {
      socket = await this.socket;
    } catch (error) {
      this.socket = undefined;
      throw error;
    }
    const id = ++this.count;
    return new Promise<T>((resolve, reject) => {
      this.waiting.set(id, { before: before as (value: never) => void, resolve: resolve as (value: never) => void, reject });
      socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
    });
  }

  get session(): string | undefined {
    return this.shown?.session;
  }

  dispose(): void {
    this.closed = true;
    void this.socket?.then((socket) => socket.close()).catch(() => undefined);
  }
}

interface Message {
  id?: number;
  method?: string;
  params?: unknown;
  result?: unknown;
  error?: { message: string; data?: { hint?: string } };
}

function open(url: string, token: string): Promise<WebSocket | undefined> {
  return new Promise((resolve) => {
    const socket = new WebSocket(url, ["fulgur.host", `fulgur.token.${token}`]);
    socket.onopen = () => resolve(socket);
    socket.onerror = () => resolve(undefined);
  });
}
