// Edits of the buffer as it is: those that follow from the last change, and those requested by an instruction.
import * as vscode from "vscode";
import { becomes, Thought } from "./ghost";
import type { Server } from "./server";
import type { Status } from "./status";

interface Place {
  line: number;
  character: number;
}
export interface Suggestion {
  id: string;
  edits: { range: { start: Place; end: Place }; newText: string }[];
}
interface Suggestions {
  suggestions: Suggestion[];
  reason?: string;
}

export const SETTLED = 250; // ms without a key, after which the last change is looked at as a whole

const removed = vscode.window.createTextEditorDecorationType({
  backgroundColor: new vscode.ThemeColor("diffEditor.removedTextBackground"),
  isWholeLine: true,
});
const added = vscode.window.createTextEditorDecorationType({
  backgroundColor: new vscode.ThemeColor("diffEditor.insertedTextBackground"),
  isWholeLine: true,
});
const proposed = vscode.window.createTextEditorDecorationType({
  after: { color: new vscode.ThemeColor("editorGhostText.foreground"), fontStyle: "italic", margin: "0 0 0 2em" },
});

export const range = (given: { start: Place; end: Place }): vscode.Range =>
  new vscode.Range(given.start.line, given.start.character, given.end.line, given.end.character);

const oneLine = (text: string): string => text.replace(/\s+/g, " ").trim().slice(0, 120);

/** Next edits: shown beside the code; Tab goes there, Tab again accepts, Escape dismisses. */
export class NextEdits implements vscode.Disposable {
  private readonly parts: vscode.Disposable[] = [];
  private readonly thoughts = new Map<string, Thought>();
  private shown: { editor: vscode.TextEditor; suggestion: Suggestion } | undefined;
  private readonly dismissed = new Set<string>();
  private waiting: NodeJS.Timeout | undefined;
  private asking: AbortController | undefined;
  private applying = false;
  /** The editor draws them itself, and requests them with `find`. */
  native = false;

  constructor(
    private readonly server: Server,
    private readonly status: Status,
  ) {
    for (const editor of vscode.window.visibleTextEditors) this.open(editor.document);
    this.parts.push(
      vscode.window.onDidChangeActiveTextEditor((editor) => editor && this.open(editor.document)),
      vscode.workspace.onDidChangeTextDocument((event) => this.changed(event)),
      vscode.workspace.onDidCloseTextDocument((document) => this.thoughts.delete(document.uri.toString())),
      vscode.commands.registerCommand("fulgur.next.accept", () => this.accept()),
      vscode.commands.registerCommand("fulgur.next.reject", () => this.reject()),
    );
  }

  private open(document: vscode.TextDocument): void {
    const key = document.uri.toString();
    if (!this.thoughts.has(key)) this.thoughts.set(key, new Thought(document.getText(), Date.now()));
  }

  private changed(event: vscode.TextDocumentChangeEvent): void {
    const { document } = event;
    if (document.uri.scheme !== "file" || !event.contentChanges.length) return;
    this.thoughts.get(document.uri.toString())?.changed(document.getText(), Date.now());
    if (this.native || this.applying) return;
    this.hide();
    clearTimeout(this.waiting);
    this.asking?.abort();
    this.waiting = setTimeout(() => void this.look(document), SETTLED);
  }

  private async look(document: vscode.TextDocument): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (editor?.document !== document) return;
    const next = await this.find(document, editor.selection.active, (this.asking = new AbortController()).signal);
    if (next) await this.show(editor, next);
  }

  /** What follows from the last changes of a buffer; undefined if nothing does, or if it changed meanwhile. */
  async find(document: vscode.TextDocument, { line, character }: vscode.Position, signal: AbortSignal): Promise<Suggestion | undefined> {
    const settings = vscode.workspace.getConfiguration("fulgur", document);
    if (!settings.get("nextEdits", true) || settings.get<string[]>("off", []).includes(document.languageId)) return undefined;
    const text = document.getText();
    const previous = this.thoughts.get(document.uri.toString())?.base;
    if (previous === undefined || previous === text) return undefined;
    const { version } = document;
    const began = performance.now();
    const body = { path: vscode.workspace.asRelativePath(document.uri), text, previous, position: { line, character } };
    const found = await this.server.post<Suggestions>("/edits/suggest", body, signal);
    if (signal.aborted || document.version !== version) return undefined;
    const next = found?.suggestions.find((one) => !this.dismissed.has(one.id));
    if (next) this.status.shown("a next edit", performance.now() - began);
    else if (this.server.problem) this.status.quiet(this.server.problem, true);
    return next;
  }

  private async show(editor: vscode.TextEditor, suggestion: Suggestion): Promise<void> {
    const edit = suggestion.edits[0];
    if (!edit) return;
    const shown = (this.shown = { editor, suggestion });
    // Set the key before showing the hint: whoever sees the hint presses Tab.
    await vscode.commands.executeCommand("setContext", "fulgur.nextEdit", true);
    if (this.shown !== shown) return; // another key was faster
    const place = range(edit.range);
    const last = Math.max(place.start.line, place.end.line - 1);
    const lines = new vscode.Range(place.start.line, 0, last, editor.document.lineAt(Math.min(last, editor.document.lineCount - 1)).text.length);
    editor.setDecorations(removed, place.isEmpty ? [] : [lines]);
    const hover = new vscode.MarkdownString();
    hover.appendCodeblock(edit.newText, editor.document.languageId);
    const fresh = edit.newText.replace(/\r?\n$/, "").split(/\r?\n/);
    const count = place.end.line - place.start.line;
    // Line by line if the lines correspond, else all of it after the last one.
    const hints = fresh.length === count ? fresh : [edit.newText];
    const decorations = hints.map((text, index) => {
      const line = hints.length === count ? place.start.line + index : last;
      const end = editor.document.lineAt(Math.min(line, editor.document.lineCount - 1)).range;
      const hint = hints.length === count ? becomes(editor.document.lineAt(line).text, text) : `→ ${text.trim() || "(removed)"}`;
      const contentText = `${oneLine(hint)}${index === 0 ? "    Tab" : ""}`;
      return { range: end, renderOptions: { after: { contentText } }, hoverMessage: hover };
    });
    editor.setDecorations(proposed, decorations);
  }

  private hide(): void {
    if (!this.shown) return;
    this.shown.editor.setDecorations(removed, []);
    this.shown.editor.setDecorations(proposed, []);
    this.shown = undefined;
    void vscode.commands.executeCommand("setContext", "fulgur.nextEdit", false);
  }

  private async accept(): Promise<void> {
    const { shown } = this;
    const edit = shown?.suggestion.edits[0];
    if (!shown || !edit) return;
    const { editor } = shown;
    const place = range(edit.range);
    const here = editor.selection.active.line;
    if (here < place.start.line || here > Math.max(place.start.line, place.end.line - 1)) {
      const line = Math.min(place.start.line, editor.document.lineCount - 1);
      const first = editor.document.lineAt(line).firstNonWhitespaceCharacterIndex;
      editor.selection = new vscode.Selection(line, first, line, first);
      editor.revealRange(place, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
      return; // the next Tab accepts it
    }
    this.hide();
    this.applying = true;
    try {
      await editor.edit((builder) => builder.replace(editor.document.validateRange(place), edit.newText));
    } finally {
      this.applying = false;
    }
    await this.look(editor.document); // the rest of the same thought
  }

  private reject(): void {
    if (this.shown) this.dismiss(this.shown.editor.document, this.shown.suggestion.id);
    this.hide();
  }

  /** Dismiss this edit and any others that follow from the same changes. */
  dismiss(document: vscode.TextDocument, id: string): void {
    this.dismissed.add(id);
    this.thoughts.get(document.uri.toString())?.end();
  }

  dispose(): void {
    this.hide();
    for (const part of this.parts) part.dispose();
  }
}

/** Inline edit: applied at once with both versions marked, then kept or reverted with the code lenses above it. */
export class InlineEdit implements vscode.CodeLensProvider, vscode.Disposable {
  private readonly parts: vscode.Disposable[] = [];
  private readonly moved = new vscode.EventEmitter<void>();
  readonly onDidChangeCodeLenses = this.moved.event;
  private open: { editor: vscode.TextEditor; range: vscode.Range; before: string; text: string } | undefined;

  constructor(
    private readonly server: Server,
    private readonly status: Status,
  ) {
    this.parts.push(
      vscode.languages.registerCodeLensProvider({ scheme: "file" }, this),
      vscode.commands.registerCommand("fulgur.edit", (instruction?: string) => this.ask(instruction)),
      vscode.commands.registerCommand("fulgur.edit.accept", () => this.close()),
      vscode.commands.registerCommand("fulgur.edit.reject", () => this.takeBack()),
    );
  }

  provideCodeLenses(document: vscode.TextDocument): vscode.CodeLens[] {
    if (this.open?.editor.document !== document) return [];
    const place = this.open.range;
    return [
      new vscode.CodeLens(place, { title: "$(check) Keep", command: "fulgur.edit.accept" }),
      new vscode.CodeLens(place, { title: "$(discard) Undo", command: "fulgur.edit.reject" }),
    ];
  }

  private async ask(given?: string): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (!editor) return;
    const instruction = given ?? (await vscode.window.showInputBox({ prompt: "What should change here?", placeHolder: "rename result to amount, add type hints …" }));
    if (!instruction) return;
    this.close();
    const { document, selection } = editor;
    const version = document.version;
    const place = { start: selection.start, end: selection.end };
    const body = {
      path: vscode.workspace.asRelativePath(document.uri),
      text: document.getText(),
      position: { line: selection.active.line, character: selection.active.character },
      instruction,
      ...(selection.isEmpty ? {} : { range: place }),
    };
    const began = performance.now();
    const found = await this.server.post<Suggestions>("/edits/suggest", body, new AbortController().signal);
    const edits = found?.suggestions.flatMap((one) => one.edits) ?? [];
    if (!edits.length) {
      const reason = found?.reason ?? this.server.problem;
      this.status.quiet(reason, !found);
      void vscode.window.showInformationMessage(`Fulgur: no edit. ${reason}`);
      return;
    }
    if (document.version !== version) return;
    edits.sort((a, b) => a.range.start.line - b.range.start.line);
    const whole = document.validateRange(range({ start: edits[0]!.range.start, end: edits.at(-1)!.range.end }));
    const before = document.getText(whole);
    let text = "";
    let at = document.offsetAt(whole.start);
    const source = document.getText();
    for (const edit of edits) {
      const part = document.validateRange(range(edit.range));
      text += source.slice(at, document.offsetAt(part.start)) + edit.newText;
      at = document.offsetAt(part.end);
    }
    text += source.slice(at, document.offsetAt(whole.end));
    await editor.edit((builder) => builder.replace(whole, text));
    const end = document.positionAt(document.offsetAt(whole.start) + text.length);
    const last = Math.max(whole.start.line, end.character === 0 ? end.line - 1 : end.line);
    this.open = { editor, range: new vscode.Range(whole.start.line, 0, last, document.lineAt(last).text.length), before, text };
    editor.setDecorations(added, [this.open.range]);
    this.status.shown("an edit", performance.now() - began);
    void vscode.commands.executeCommand("setContext", "fulgur.inlineEdit", true);
    this.moved.fire();
  }

  private close(): void {
    this.open?.editor.setDecorations(added, []);
    this.open = undefined;
    void vscode.commands.executeCommand("setContext", "fulgur.inlineEdit", false);
    this.moved.fire();
  }

  private async takeBack(): Promise<void> {
    const { open } = this;
    if (!open) return;
    const { document } = open.editor;
    const start = document.offsetAt(new vscode.Position(open.range.start.line, 0));
    if (document.getText().startsWith(open.text, start)) {
      const place = new vscode.Range(document.positionAt(start), document.positionAt(start + open.text.length));
      await open.editor.edit((builder) => builder.replace(place, open.before));
    } else {
      void vscode.window.showWarningMessage("Fulgur: the lines have changed since; use the editor's Undo to revert the edit.");
    }
    this.close();
  }

  dispose(): void {
    this.close();
    for (const part of this.parts) part.dispose();
  }
}
