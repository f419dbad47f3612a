// The messages between the composer's page and the extension.
import type { AgentEvent, Attached } from "../../web/src/wire";

/** `call` is a request to the host about the shown session; `again`: it may be repeated. */
export type FromPage =
  | { type: "ready" }
  | { type: "call"; id: number; method: string; params: Record<string, unknown>; again: boolean }
  | { type: "open"; path: string };

export type ToPage =
  | { type: "attached"; attached: Attached }
  | { type: "event"; seq: number; event: AgentEvent }
  | { type: "answer"; id: number; result?: unknown; error?: string }
  | { type: "problem"; text: string };
