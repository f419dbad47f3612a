// Ghost text: requested at once, kept while typing agrees with it, and prefetched for what follows the shown one.
import * as vscode from "vscode";
import { Known, quiet, trimmed } from "./ghost";
import type { Server } from "./server";
import { pause } from "./server";
import type { Status } from "./status";

const TOKENS = 48;
const CONTEXT = 12_000; // characters before the cursor to send; the server cuts them to what the model sees
const AFTER = 4_000;
const UNSURE = "the model is not sure how this continues (“Complete here now” shows its guess)";

interface Completion {
  choices: { text: string }[];
}

export class GhostText implements vscode.InlineCompletionItemProvider {
  readonly known = new Known();

  constructor(
    private readonly server: Server,
    private readonly status: Status,
  ) {}

  async provideInlineCompletionItems(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionItem[]> {
    const settings = vscode.workspace.getConfiguration("fulgur", document);
    const asked = context.triggerKind === vscode.InlineCompletionTriggerKind.Invoke;
    if (!settings.get("ghostText", true)) return this.nothing("ghost text is switched off (fulgur.ghostText)");
    if (settings.get<string[]>("off", []).includes(document.languageId))
      return this.nothing(`it is switched off for ${document.languageId} (fulgur.off)`);
    const line = document.lineAt(position.line).text;
    const lineAfter = line.slice(position.character);
    const editor = vscode.window.activeTextEditor;
    const reason = quiet(lineAfter, editor?.document === document && !editor.selection.isEmpty);
    if (reason && !asked) return this.nothing(reason);
    const text = document.getText();
    const offset = document.offsetAt(position);
    const before = text.slice(0, offset);
    const after = text.slice(offset, offset + AFTER);
    const left = this.known.find(before, after);
    if (left) return this.items(left, position);
    if (left === "" && !asked) return this.nothing(UNSURE);
    const delay = settings.get("minimumDelay", 0);
    if (delay && !asked) await pause(delay);
    if (token.isCancellationRequested) return [];
    const began = performance.now();
    let found = await this.ask(document, before, after, lineAfter, token);
    // Somebody who asks explicitly gets a guess rather than nothing.
    if (found === "" && asked) found = await this.ask(document, before, after, lineAfter, token, { min_probability: 0 });
    if (found === undefined) {
      if (this.server.problem) this.status.quiet(this.server.problem, true);
      return [];
    }
    if (!found) {
      this.known.add({ before, after, text: "" });
      return this.nothing(UNSURE);
    }
    this.status.shown("ghost text", performance.now() - began);
    this.known.add({ before, after, text: found });
    void this.follow(document, before + found, after);
    return this.items(found, position);
  }

  private async ask(
    document: vscode.TextDocument,
    before: string,
    after: string,
    lineAfter: string,
    token: vscode.CancellationToken | undefined,
    more: Record<string, unknown> = {},
  ): Promise<string | undefined> {
    const hangUp = new AbortController();
    const listening = token?.onCancellationRequested(() => hangUp.abort());
    const body = { ...more, prompt: before.slice(-CONTEXT), suffix: after, path: vscode.workspace.asRelativePath(document.uri), max_tokens: TOKENS, stop: ["\n"], temperature: 0 };
    const answer = await this.server.post<Completion>("/completions", body, hangUp.signal);
    listening?.dispose();
    if (answer === undefined) return undefined;
    return trimmed(answer.choices[0]?.text ?? "", lineAfter);
  }

  /** Prefetch the completion after the shown one, so that it is there when this one is accepted. */
  private async follow(document: vscode.TextDocument, before: string, after: string): Promise<void> {
    if (this.known.find(before, after) !== undefined) return;
    const next = await this.ask(document, before, after, "", undefined);
    if (next !== undefined) this.known.add({ before, after, text: next });
  }

  private items(text: string, position: vscode.Position): vscode.InlineCompletionItem[] {
    return [new vscode.InlineCompletionItem(text, new vscode.Range(position, position))];
  }

  private nothing(reason: string): vscode.InlineCompletionItem[] {
    this.status.quiet(reason);
    return [];
  }
}
