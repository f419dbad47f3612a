// The local server: found by the note it leaves, or started. Ghost text and edits use plain HTTP requests.
import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import * as vscode from "vscode";

export const home = (): string => process.env["FULGUR_HOME"] ?? join(homedir(), ".fulgur");

export class Missing extends Error {}

/** Start one of our commands, detached; if there is no fulgur, a Missing error says what to do. */
export function launch(...words: string[]): Promise<void> {
  const command = vscode.workspace.getConfiguration("fulgur").get("command", "fulgur");
  return new Promise((resolve, reject) => {
    const child = spawn(command, words, { detached: true, stdio: "ignore", cwd: homedir() });
    child.once("error", (error: NodeJS.ErrnoException) =>
      reject(
        new Missing(
          error.code === "ENOENT"
            ? `The program "${command}" was not found. Install Fulgur (make run in its checkout), or set fulgur.command to its full path.`
            : `"${command}" cannot be started: ${error.message}`,
        ),
      ),
    );
    child.once("spawn", () => {
      child.unref();
      resolve();
    });
  });
}

export async function note(name: string): Promise<Record<string, string> | undefined> {
  try {
    return JSON.parse(await readFile(join(home(), name), "utf8")) as Record<string, string>;
  } catch {
    return undefined;
  }
}

export const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

export interface ServedModel {
  id: string;
  context_window?: number;
  capabilities?: Record<string, unknown>;
}

/** One per window. `problem` is what a person should know when nothing works. */
export class Server {
  problem = "";
  private base: Promise<string> | undefined;
  private chosen: string | undefined;

  forget(): void {
    this.base = this.chosen = undefined;
  }

  private async find(): Promise<string | undefined> {
    const base = (await note("server.json"))?.["base_url"];
    if (!base) return undefined;
    try {
      const answer = await fetch(base.replace(/\/v1$/, "/healthz"), { signal: AbortSignal.timeout(2000) });
      return answer.ok ? base : undefined;
    } catch {
      return undefined;
    }
  }

  private async start(): Promise<string> {
    const found = await this.find();
    if (found) return found;
    await launch("serve", "--idle-exit", "60", "--port", "0");
    for (let n = 0; n < 300; n++) {
      await pause(100);
      const base = await this.find();
      if (base) return base;
    }
    throw new Error(`The local server did not start. Run "fulgur serve" in a terminal to see why.`);
  }

  private async url(): Promise<string> {
    this.base ??= this.start();
    try {
      return await this.base;
    } catch (error) {
      this.base = undefined;
      throw error;
    }
  }

  /** The models that the server serves; without `start`, only a running server is queried. */
  async models(start = true): Promise<ServedModel[]> {
    const base = start ? await this.url() : await this.find();
    if (!base) return [];
    const answer = await fetch(`${base}/models`);
    return ((await answer.json()) as { data: ServedModel[] }).data;
  }

  async model(): Promise<string> {
    const wanted = vscode.workspace.getConfiguration("fulgur").get("model", "");
    if (wanted) return wanted;
    if (this.chosen) return this.chosen;
    const data = await this.models();
    const able = data.find((one) => one.capabilities?.["fim"] && one.capabilities?.["edit"]) ?? data.find((one) => one.capabilities?.["fim"]);
    if (!able) throw new Error("No model of the server completes code. Set fulgur.model, or serve one that does.");
    return (this.chosen = able.id);
  }

  /** Send a request; aborting (the signal) ends the work in the engine. Undefined if it was aborted or failed
   * (`problem`). */
  async post<T>(path: string, body: Record<string, unknown>, signal: AbortSignal): Promise<T | undefined> {
    try {
      const send = async (): Promise<Response> =>
        fetch(`${await this.url()}${path}`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ model: await this.model(), ...body }),
          signal,
        });
      const answer = await send().catch((error: unknown) => {
        if (signal.aborted || error instanceof Missing) throw error;
        this.forget(); // the server has ended, or another one runs now
        return send();
      });
      const result = (await answer.json()) as T & { error?: { message: string } };
      if (!answer.ok) throw new Error(result.error?.message ?? `the server answered ${answer.status}`);
      this.problem = "";
      return result;
    } catch (error) {
      if (!signal.aborted) this.problem = error instanceof Error ? error.message : String(error);
      return undefined;
    }
  }

  /** The pieces of a streamed answer; if the server refuses, throws its own error message. */
  async *stream(path: string, body: Record<string, unknown>, signal: AbortSignal): AsyncGenerator<string> {
    const headers = { "content-type": "application/json" };
    const answer = await fetch(`${await this.url()}${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
    if (!answer.ok || !answer.body) {
      const { error } = (await answer.json().catch(() => ({}))) as { error?: { message: string } };
      throw new Error(error?.message ?? `the server answered ${answer.status}`);
    }
    const decoder = new TextDecoder();
    const reader = answer.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  }

  /** How many tokens a text has; undefined if the model cannot say. */
  async count(model: string, content: string): Promise<number | undefined> {
    try {
      const body = JSON.stringify({ model, content });
      const answer = await fetch(`${(await this.url()).replace(/\/v1$/, "")}/tokenize`, { method: "POST", headers: { "content-type": "application/json" }, body });
      return answer.ok ? ((await answer.json()) as { tokens: unknown[] }).tokens.length : undefined;
    } catch {
      return undefined;
    }
  }
}
