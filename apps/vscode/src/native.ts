// Next edits drawn by the editor itself. The interface for it is a proposal (inlineCompletionsAdditions), so it exists
// only where somebody enabled it: `--enable-proposed-api=fulgur.fulgur`. Elsewhere edits.ts draws beside the code.
import * as vscode from "vscode";
import { type NextEdits, range, SETTLED } from "./edits";

type Item = vscode.InlineCompletionItem & { isInlineEdit?: boolean; showInlineEditMenu?: boolean; id?: string; document?: vscode.TextDocument };
type Provider = vscode.InlineCompletionItemProvider & { handleEndOfLifetime?(item: Item, reason: { kind: number }): void };
type Register = (where: vscode.DocumentSelector, provider: Provider, about: { displayName: string; debounceDelayMs: number }) => vscode.Disposable;
const REJECTED = 1; // from InlineCompletionEndOfLifeReasonKind

/** Let the editor draw next edits; undefined if that is not allowed. */
export function drawnByEditor(next: NextEdits): vscode.Disposable | undefined {
  const provider: Provider = {
    async provideInlineCompletionItems(document, position, _, token) {
      const hangUp = new AbortController();
      const listening = token.onCancellationRequested(() => hangUp.abort());
      const found = await next.find(document, position, hangUp.signal);
      listening.dispose();
      const edit = found?.edits[0];
      if (!found || !edit) return [];
      let place = document.validateRange(range(edit.range));
      let text = edit.newText;
      // Whole lines, without the end of the last one: the editor compares them with what is there.
      if (place.end.character === 0 && place.end.line > place.start.line && text.endsWith("\n")) {
        place = new vscode.Range(place.start, document.lineAt(place.end.line - 1).range.end);
        text = text.replace(/\r?\n$/, "");
      }
      const item: Item = new vscode.InlineCompletionItem(text, place);
      return [Object.assign(item, { isInlineEdit: true, id: found.id, document })];
    },
    handleEndOfLifetime(item, reason) {
      if (reason.kind === REJECTED && item.id && item.document) next.dismiss(item.document, item.id);
    },
  };
  try {
    const register = vscode.languages.registerInlineCompletionItemProvider.bind(vscode.languages) as unknown as Register;
    const registered = register({ scheme: "file" }, provider, { displayName: "Fulgur: next edits", debounceDelayMs: SETTLED });
    next.native = true;
    return registered;
  } catch {
    return undefined; // the proposal is not enabled
  }
}
