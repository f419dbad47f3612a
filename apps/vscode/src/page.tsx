// The composer's page: a session built from parts of the web app. The extension holds the connection.
import { signal } from "@preact/signals";
import { render } from "preact";
import { Approvals } from "../../web/src/approval";
import { Changes } from "../../web/src/changes";
import { Composer } from "../../web/src/composer";
import { Log } from "../../web/src/log";
import { Model, Plan, Queued } from "../../web/src/parts";
import { Session } from "../../web/src/session";
import { Speed } from "../../web/src/speed";
import type { Link } from "../../web/src/wire";
import type { FromPage, ToPage } from "./messages";

interface Api {
  postMessage(message: FromPage): void;
  getState(): Record<string, string> | undefined;
  setState(state: Record<string, string>): void;
}
declare function acquireVsCodeApi(): Api;

const api = acquireVsCodeApi();
const shown = signal<Session | undefined>(undefined);
const problem = signal("");
const waiting = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
let count = 0;

const link: Link = {
  call: (method, params = {}, again = false) =>
    new Promise((resolve, reject) => {
      waiting.set(++count, { resolve, reject });
      api.postMessage({ type: "call", id: count, method, params: { ...params }, again });
    }),
  follow: () => Promise.resolve(), // the extension follows the shown session
};
/** The draft outlives the page, which is destroyed whenever it is hidden. */
const drafts = {
  getItem: (): string => api.getState()?.["draft"] ?? "",
  setItem: (_: string, draft: string): void => api.setState({ draft }),
};

window.addEventListener("message", ({ data }: MessageEvent<ToPage>) => {
  switch (data.type) {
    case "attached":
      if (shown.value?.session !== data.attached.session) shown.value = new Session(link, data.attached.session);
      shown.value.restart(data.attached);
      break;
    case "event":
      shown.value?.take(data.seq, data.event);
      break;
    case "answer":
      if (data.error === undefined) waiting.get(data.id)?.resolve(data.result as never);
      else waiting.get(data.id)?.reject(new Error(data.error));
      waiting.delete(data.id);
      break;
    case "problem":
      if (shown.value) shown.value.problem(new Error(data.text));
      else problem.value = data.text;
  }
});

function Page() {
  const session = shown.value;
  if (!session) return <p class={problem.value ? "empty bad" : "empty"}>{problem.value || "Connecting…"}</p>;
  return (
    <main
      class="chat pane"
      key={session.session}
      data-session={session.session}
      onKeyDown={(key) => {
        if (key.key !== "Escape" || key.defaultPrevented || !session.running.value) return;
        key.preventDefault();
        session.tell("turn.stop");
      }}
    >
      <Plan session={session} />
      <Log session={session} />
      {session.changes.value.length > 0 && <Changes session={session} open={(path) => api.postMessage({ type: "open", path })} />}
      <Approvals session={session} />
      <Queued session={session} />
      <Composer session={session} drafts={drafts} />
      <div class="foot row">
        <Model session={session} />
        <Speed usage={session.speed.value} />
      </div>
      <div class="spoken" role="status" aria-live="polite">
        {session.spoken.value}
      </div>
    </main>
  );
}

render(<Page />, document.body);
api.postMessage({ type: "ready" });
