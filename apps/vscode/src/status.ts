// One item in the status bar: what Fulgur is doing, how fast, and why nothing appeared.
import * as vscode from "vscode";

export class Status implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("fulgur.status", vscode.StatusBarAlignment.Right, 90);
  private reason = "nothing was requested yet";

  constructor() {
    this.item.name = "Fulgur";
    this.item.command = "fulgur.why";
    this.say("ready");
    this.item.show();
  }

  private say(text: string, warn = false): void {
    this.item.text = `$(zap) ${text}`;
    this.item.tooltip = `Fulgur: ${this.reason}`;
    this.item.backgroundColor = warn ? new vscode.ThemeColor("statusBarItem.warningBackground") : undefined;
  }

  shown(what: string, milliseconds: number): void {
    this.reason = `${what}, after ${Math.round(milliseconds)} ms`;
    this.say(`${Math.round(milliseconds)} ms`);
  }

  /** Say why nothing appears now. */
  quiet(reason: string, warn = false): void {
    this.reason = `nothing appeared: ${reason}`;
    this.say(warn ? "not working" : "quiet", warn);
  }

  speed(text: string): void {
    this.reason = text;
    this.say(text);
  }

  get why(): string {
    return this.reason;
  }

  dispose(): void {
    this.item.dispose();
  }
}
