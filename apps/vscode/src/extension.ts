// Ghost text, next edits, inline edits and the composer, each in its own file; this one joins them to the editor.
import * as vscode from "vscode";
import { Composer } from "./composer";
import { GhostText } from "./completions";
import { InlineEdit, NextEdits } from "./edits";
import { drawnByEditor } from "./native";
import { ChatModels, VENDOR } from "./models";
import { Server } from "./server";
import { Status } from "./status";

export function activate(context: vscode.ExtensionContext): void {
  const server = new Server();
  const status = new Status();
  const ghost = new GhostText(server, status);
  const composer = new Composer(context.extensionUri, status, context.workspaceState);
  const models = new ChatModels(server);
  const next = new NextEdits(server, status);
  // Marketplaces that refuse proposed APIs get a package that names none; some editors grant them to everybody anyway.
  const { enabledApiProposals } = context.extension.packageJSON as { enabledApiProposals?: string[] };
  const drawn = enabledApiProposals?.length ? drawnByEditor(next) : undefined;
  context.subscriptions.push(
    status,
    composer,
    next,
    ...(drawn ? [drawn] : []),
    new InlineEdit(server, status),
    vscode.languages.registerInlineCompletionItemProvider({ scheme: "file" }, ghost),
    vscode.languages.registerInlineCompletionItemProvider({ scheme: "untitled" }, ghost),
    vscode.lm.registerLanguageModelChatProvider(VENDOR, models),
    vscode.window.registerWebviewViewProvider("fulgur.composer", composer),
    vscode.commands.registerCommand("fulgur.newSession", () => composer.newSession()),
    vscode.commands.registerCommand("fulgur.openSession", () => composer.openSession()),
    vscode.commands.registerCommand("fulgur.complete", () => vscode.commands.executeCommand("editor.action.inlineSuggest.trigger")),
    vscode.commands.registerCommand("fulgur.why", () => vscode.window.showInformationMessage(`Fulgur: ${server.problem || status.why}`)),
    vscode.commands.registerCommand("fulgur.restart", () => {
      server.forget();
      ghost.known.clear();
      models.refresh();
    }),
    vscode.commands.registerCommand("fulgur.toggleLanguage", async () => {
      const language = vscode.window.activeTextEditor?.document.languageId;
      if (!language) return;
      const settings = vscode.workspace.getConfiguration("fulgur");
      const off = settings.get<string[]>("off", []);
      const next = off.includes(language) ? off.filter((one) => one !== language) : [...off, language];
      await settings.update("off", next, vscode.ConfigurationTarget.Global);
      void vscode.window.showInformationMessage(`Fulgur: suggestions are ${next.includes(language) ? "off" : "on"} for ${language}`);
    }),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("fulgur")) server.forget();
    }),
  );
}

export function deactivate(): void {
  return;
}
