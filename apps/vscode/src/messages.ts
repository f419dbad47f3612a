// What the composer's page and the extension say to each other.
import type { AgentEvent, Attached } from "../../web/src/wire";

/** `call` asks the host about the session that is shown; `again`: it may be asked twice. */
export type FromPage =
  | { type: "ready" }
  | { type: "call"; id: number; method: string; params: Record<string, unknown>; again: boolean }
  | { type: "open"; path: string };

export type ToPage =
  | { type: "attached"; attached: Attached }
  | { type: "event"; seq: number; event: AgentEvent }
  | { type: "answer"; id: number; result?: unknown; error?: string }
  | { type: "problem"; text: string };
