// The server's chat models in VS Code's own model picker, and for other extensions (vscode.lm).
import * as vscode from "vscode";
import { Answer, messages } from "./chat";
import type { Server } from "./server";

export const VENDOR = "fulgur";
const ANSWER = 4_096; // tokens of the context reserved for the answer

export class ChatModels implements vscode.LanguageModelChatProvider {
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChangeLanguageModelChatInformation = this.changed.event;

  constructor(private readonly server: Server) {}

  /** Call when the server has other models, or another server runs. */
  refresh(): void {
    this.changed.fire();
  }

  async provideLanguageModelChatInformation(options: { silent: boolean }): Promise<vscode.LanguageModelChatInformation[]> {
    const found = await this.server.models(!options.silent).catch((error: unknown) => {
      if (!options.silent) throw error;
      return [];
    });
    return found
      .filter((one) => one.capabilities?.["chat"])
      .map((one) => {
        const context = one.context_window ?? 8_192;
        const most = Math.min(ANSWER, Math.floor(context / 4));
        return {
          id: one.id,
          name: one.id,
          family: one.id,
          version: "1",
          detail: "Fulgur, on this machine",
          maxInputTokens: context - most,
          maxOutputTokens: most,
          capabilities: { toolCalling: Boolean(one.capabilities?.["tools"]), imageInput: Boolean(one.capabilities?.["vision"]) },
        };
      });
  }

  async provideLanguageModelChatResponse(
    model: vscode.LanguageModelChatInformation,
    asked: readonly vscode.LanguageModelChatRequestMessage[],
    options: vscode.ProvideLanguageModelChatResponseOptions,
    progress: vscode.Progress<vscode.LanguageModelResponsePart>,
    token: vscode.CancellationToken,
  ): Promise<void> {
    const hangUp = new AbortController();
    const listening = token.onCancellationRequested(() => hangUp.abort());
    const tools = (options.tools ?? []).map(({ name, description, inputSchema }) => ({
      type: "function",
      function: { name, description, parameters: inputSchema ?? { type: "object", properties: {} } },
    }));
    const required = options.toolMode === vscode.LanguageModelChatToolMode.Required;
    const body = {
      ...(options.modelOptions ?? {}),
      model: model.id,
      messages: messages(asked.map(({ role, content }) => ({ role: role === vscode.LanguageModelChatMessageRole.Assistant ? "assistant" : "user", content }))),
      ...(tools.length ? { tools, tool_choice: required ? "required" : "auto" } : {}),
      stream: true,
    };
    try {
      const answer = new Answer();
      for await (const received of this.server.stream("/chat/completions", body, hangUp.signal)) {
        const said = answer.text(received);
        if (said) progress.report(new vscode.LanguageModelTextPart(said));
      }
      for (const call of answer.calls()) progress.report(new vscode.LanguageModelToolCallPart(call.id, call.name, call.input));
    } catch (error) {
      if (!hangUp.signal.aborted) throw error;
    } finally {
      listening.dispose();
    }
  }

  async provideTokenCount(model: vscode.LanguageModelChatInformation, text: string | vscode.LanguageModelChatRequestMessage): Promise<number> {
    const content = typeof text === "string" ? text : messages([{ role: "user", content: text.content }]).map((one) => String(one["content"] ?? "")).join("\n");
    return (await this.server.count(model.id, content)) ?? Math.ceil(content.length / 4); // a model elsewhere: estimate
  }
}
