// The composer in the side panel. The extension holds the connection; the page draws a session and sends requests
// through it.
import { randomBytes } from "node:crypto";
import * as vscode from "vscode";
import type { AgentEvent, Attached, SessionInfo } from "../../web/src/wire";
import { Host } from "./host";
import type { FromPage, ToPage } from "./messages";
import type { Status } from "./status";

/** What the page may request from the host, always about its own session. */
const METHODS = new Set([
  ...["turn.submit", "turn.stop", "approval.answer", "changes.list", "changes.accept", "changes.reject"],
  ...["session.models", "session.model", "session.program", "session.undo", "session.compact", "session.shell", "session.read"],
]);

const KEPT = "session"; // of this folder, so that a reopened window shows it
const root = (): string | undefined => vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
const told = (error: unknown): string => (error instanceof Error ? error.message : String(error));

export class Composer implements vscode.WebviewViewProvider, vscode.Disposable {
  private readonly host = new Host();
  private view: vscode.WebviewView | undefined;
  private opening = Promise.resolve();

  constructor(
    private readonly folder: vscode.Uri,
    private readonly status: Status,
    private readonly kept: vscode.Memento,
  ) {
    this.host.onEvent = (event, seq) => this.event(event, seq);
    this.host.onAttached = (attached) => this.post({ type: "attached", attached });
  }

  resolveWebviewView(view: vscode.WebviewView): void {
    this.view = view;
    view.webview.options = { enableScripts: true, localResourceRoots: [this.folder] };
    view.webview.onDidReceiveMessage((message: FromPage) => void this.asked(message));
    view.webview.html = this.page(view.webview);
  }

  newSession(): Promise<void> {
    return this.next({});
  }

  /** Open a session of this folder, whether it was started here, in a terminal or in the browser. */
  async openSession(): Promise<void> {
    try {
      const found = (await this.host.call<SessionInfo[]>("session.list", { workspace: root() })).filter((one) => !one.parent && (one.turns || one.live));
      const state = (one: SessionInfo): string => (one.waiting ? "needs you" : one.running ? "working" : new Date(one.updated * 1000).toLocaleString());
      const rows = found.map((one) => ({ label: one.title.split("\n")[0] || "New session", description: state(one), session: one.session }));
      const chosen = await vscode.window.showQuickPick(rows, { placeHolder: rows.length ? "Which session?" : "This folder has no sessions yet" });
      if (!chosen) return;
      await vscode.commands.executeCommand("fulgur.composer.focus");
      await this.next({ session: chosen.session });
    } catch (error) {
      void vscode.window.showErrorMessage(`Fulgur: ${told(error)}`);
    }
  }

  private next(which: { session?: string }): Promise<void> {
    return (this.opening = this.opening.then(() => this.attach(which)));
  }

  private async attach(which: { session?: string }): Promise<void> {
    const workspace = root();
    if (!workspace) return this.post({ type: "problem", text: "Open a folder first: the agent works in one." });
    const show = (attached: Attached): void => this.post({ type: "attached", attached });
    const open = (more: { session?: string }): Promise<Attached> => this.host.call("session.open", { workspace, ...more }, show);
    try {
      const before = this.host.session;
      // A session kept from an earlier window may have been deleted since.
      const attached = await open(which).catch((error: unknown) => {
        if (!which.session || which.session !== this.kept.get(KEPT)) throw error;
        return open({});
      });
      await this.kept.update(KEPT, attached.session);
      if (before && before !== attached.session) await this.host.call("session.detach", { session: before });
    } catch (error) {
      this.post({ type: "problem", text: told(error) });
    }
  }

  private event(event: AgentEvent, seq: number): void {
    this.post({ type: "event", seq, event });
    if (event.type !== "usage") return;
    const rate = Math.round(Number(event["tokens_per_second"]));
    this.status.speed(`${rate} tok/s · first ${Math.round(Number(event["ttft_seconds"]) * 1000)} ms`);
  }

  private async asked(message: FromPage): Promise<void> {
    const session = this.host.session;
    switch (message.type) {
      case "ready": // in sequence: a page that is loaded twice must not open two sessions
        await (this.opening = this.opening.then(() => {
          const session = this.host.session ?? this.kept.get<string>(KEPT);
          return this.attach(session ? { session } : {});
        }));
        break;
      case "open": {
        const place = root();
        if (place) await vscode.window.showTextDocument(vscode.Uri.joinPath(vscode.Uri.file(place), message.path));
        break;
      }
      case "call": {
        const { id, method, again } = message;
        const ask = (): Promise<unknown> => this.host.call(method, { ...message.params, session });
        try {
          if (!session || !METHODS.has(method)) throw new Error(`${method} cannot be called here`);
          this.post({ type: "answer", id, result: again ? await ask().catch(ask) : await ask() });
        } catch (error) {
          this.post({ type: "answer", id, error: told(error) });
        }
      }
    }
  }

  private post(message: ToPage): void {
    void this.view?.webview.postMessage(message);
  }

  private page(webview: vscode.Webview): string {
    const nonce = randomBytes(16).toString("hex");
    const built = (name: string): vscode.Uri => webview.asWebviewUri(vscode.Uri.joinPath(this.folder, "dist", name));
    const policy = `default-src 'none'; script-src 'nonce-${nonce}'; style-src ${webview.cspSource}`;
    return `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}">
<link rel="stylesheet" href="${built("page.css")}"></head><body><script nonce="${nonce}" src="${built("page.js")}"></script></body></html>`;
  }

  dispose(): void {
    this.host.dispose();
  }
}
