// Chat Completions: converts VS Code's messages to a request, and reads a streamed answer. Independent of the editor.

/** A part of a message as VS Code passes it: told apart by its fields, since its classes differ between versions. */
type Part = { value?: unknown; callId?: string; name?: string; input?: unknown; content?: readonly unknown[]; mimeType?: string; data?: Uint8Array };

export interface Message {
  role: "user" | "assistant";
  content: readonly unknown[];
}

export interface Call {
  id: string;
  name: string;
  input: object;
}

const textOf = (parts: readonly unknown[]): string =>
  parts.map((part) => (typeof (part as Part).value === "string" ? (part as { value: string }).value : "")).join("");

/** The messages of a request: a tool's result is a separate message, images follow the text of their message. */
export function messages(given: readonly Message[]): Record<string, unknown>[] {
  const found: Record<string, unknown>[] = [];
  for (const { role, content } of given) {
    const parts = content as readonly Part[];
    for (const part of parts.filter((one) => one.callId !== undefined && one.content !== undefined))
      found.push({ role: "tool", tool_call_id: part.callId, content: textOf(part.content ?? []) });
    const calls = parts
      .filter((one) => one.callId !== undefined && one.name !== undefined)
      .map((one) => ({ id: one.callId, type: "function", function: { name: one.name, arguments: JSON.stringify(one.input ?? {}) } }));
    const images = parts
      .filter((one) => one.mimeType?.startsWith("image/") && one.data)
      .map((one) => ({ type: "image_url", image_url: { url: `data:${one.mimeType};base64,${Buffer.from(one.data ?? []).toString("base64")}` } }));
    const text = textOf(parts);
    if (calls.length) found.push({ role, content: text || null, tool_calls: calls });
    else if (images.length) found.push({ role, content: [...(text ? [{ type: "text", text }] : []), ...images] });
    else if (text) found.push({ role, content: text });
  }
  return found;
}

interface Chunk {
  error?: { message: string };
  choices?: { delta: { content?: string | null; tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[] } }[];
}

/** A streamed answer: takes what was received, returns its text as it comes; `calls` are complete at the end. */
export class Answer {
  private rest = "";
  private readonly open = new Map<number, { id: string; name: string; arguments: string }>();

  text(received: string): string {
    const lines = (this.rest + received).split("\n");
    this.rest = lines.pop() ?? "";
    let said = "";
    for (const line of lines) {
      if (!line.startsWith("data: ") || line.startsWith("data: [DONE]")) continue;
      const chunk = JSON.parse(line.slice(6)) as Chunk;
      if (chunk.error) throw new Error(chunk.error.message);
      for (const { delta } of chunk.choices ?? []) {
        said += delta.content ?? "";
        for (const call of delta.tool_calls ?? []) {
          const one = this.open.get(call.index) ?? { id: "", name: "", arguments: "" };
          this.open.set(call.index, { id: one.id || (call.id ?? ""), name: one.name || (call.function?.name ?? ""), arguments: one.arguments + (call.function?.arguments ?? "") });
        }
      }
    }
    return said;
  }

  /** The tools that were called; throws if their input is incomplete. */
  calls(): Call[] {
    return [...this.open.values()].map(({ id, name, arguments: written }) => {
      try {
        return { id, name, input: JSON.parse(written || "{}") as object };
      } catch {
        throw new Error(`The model called ${name} with arguments that are not valid JSON.`);
      }
    });
  }
}
