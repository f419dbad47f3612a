// A question before the agent goes on. A key or click meant for something else must not allow a command.
import { useEffect, useState } from "preact/hooks";
import { DiffText } from "./diff";
import type { Session } from "./session";
import { exact } from "./text";
import type { AgentEvent } from "./wire";

const GUARD_MS = 500;

export function Approvals({ session }: { session: Session }) {
  return (
    <>
      {session.waiting.value.map((asked) => (
        <Question key={String(asked["approval_id"])} session={session} asked={asked} />
      ))}
    </>
  );
}

function Question({ session, asked }: { session: Session; asked: AgentEvent }) {
  const [ready, setReady] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setReady(true), GUARD_MS);
    return () => clearTimeout(timer);
  }, []);
  const answer = (decision: string): void => session.tell("approval.answer", { approval: asked["approval_id"], decision });
  // Leave out of the reason what the heading already says.
  const reason = asked["outside"] ? String(asked["reason"]).replace(/^outside the sandbox(; )?/, "") : String(asked["reason"]);
  const prefix = (asked["prefix"] as string[] | undefined) ?? [];
  const keys: Record<string, string> = { y: "once", n: "deny", ...(prefix.length ? { a: "always" } : {}) };
  return (
    <div
      class="question"
      role="group"
      aria-label="The agent asks"
      onKeyDown={(key) => {
        const decision = keys[key.key];
        if (!ready || !decision || key.ctrlKey || key.altKey || key.metaKey) return;
        key.preventDefault();
        answer(decision);
        // The question disappears, and the focus must not be lost with it.
        key.currentTarget.closest(".pane")?.querySelector<HTMLElement>(".composer textarea")?.focus();
      }}
    >
      <p class="reason">
        <b>{asked["outside"] ? "Run without the sandbox?" : "Allow this?"}</b> {reason && `${reason[0]?.toUpperCase()}${reason.slice(1)}.`}
      </p>
      <pre class="title" tabIndex={0} role="group" aria-label="What it asks for">
        {exact(String(asked["title"]))}
      </pre>
      {asked["diff"] ? <DiffText text={String(asked["diff"])} /> : null}
      <div class="row">
        <button class="primary" disabled={!ready} onClick={() => answer("once")}>
          Allow <kbd>y</kbd>
        </button>
        {prefix.length > 0 && (
          <button disabled={!ready} onClick={() => answer("always")} title="In this project, from now on">
            {exact(`Always ${covers(asked, prefix)}`)} <kbd>a</kbd>
          </button>
        )}
        <button disabled={!ready} onClick={() => answer("deny")}>
          Deny <kbd>n</kbd>
        </button>
        <span class="grow" />
        <button class="quiet" disabled={!ready} onClick={() => answer("stop")}>
          Stop the turn
        </button>
      </div>
    </div>
  );
}

/** What "always" would allow from now on. */
function covers(asked: AgentEvent, prefix: string[]): string {
  if (asked["exact"]) return "this command";
  if (String(asked["title"]).startsWith("$ ")) return `“${prefix.join(" ")} …”`;
  return prefix[0] === "mcp" ? "this tool" : `edits of ${prefix.slice(1).join(", ")}`;
}
