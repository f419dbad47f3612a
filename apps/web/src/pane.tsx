// One session: its log, questions, plan and composer; beside it, or behind a tab, its changes and its speed.
import { useSignal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { Approvals } from "./approval";
import { Changes } from "./changes";
import { Composer } from "./composer";
import { Log } from "./log";
import { Model, Plan, Queued } from "./parts";
import type { Session } from "./session";
import { Plots, Speed } from "./speed";
import { closePane, host, openBeside, refresh, short, stored } from "./state";
import type { Attached } from "./wire";
import { Worktree } from "./worktree";

type Part = "chat" | "changes" | "speed";
const WIDE = 1000; // from this width on, the changes stand beside the log

export function Pane({ session }: { session: Session }) {
  const part = useSignal<Part>("chat");
  const wide = useSignal(false);
  const box = useRef<HTMLElement>(null);
  useEffect(() => {
    const watch = new ResizeObserver(([seen]) => (wide.value = (seen?.contentRect.width ?? 0) >= WIDE));
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const changes = session.changes.value.length;
  const beside = wide.value && (changes > 0 || part.value === "speed");
  const now: Part = beside && part.value === "chat" ? "changes" : part.value;
  const listed = [...host.live.value, ...stored.value].find((info) => info.session === session.session);
  const title = session.title.value || listed?.title;
  return (
    <article
      class={`pane ${beside ? "split" : ""}`}
      ref={box}
      aria-label={title || "New session"}
      onKeyDown={(key) => {
        if (key.key !== "Escape" || key.defaultPrevented || !session.running.value) return;
        key.preventDefault();
        session.tell("turn.stop");
      }}
    >
      <Head session={session} title={title || "New session"} />
      <div class="bar">
        <div class="parts" role="group" aria-label="Parts of the session">
          {!beside && <PartButton name="Chat" on={now === "chat"} go={() => (part.value = "chat")} />}
          <PartButton name={changes ? `Changes (${changes})` : "Changes"} on={now === "changes"} go={() => (part.value = "changes")} />
          <PartButton name="Speed" on={now === "speed"} go={() => (part.value = "speed")} />
        </div>
        <Speed usage={session.speed.value} />
      </div>
      <div class="body">
        <div class="chat" hidden={!beside && now !== "chat"}>
          <Plan session={session} />
          <Log session={session} />
          <Approvals session={session} />
          <Queued session={session} />
          <Composer session={session} />
        </div>
        {now === "changes" && <Changes session={session} />}
        {now === "speed" && <Plots session={session} />}
      </div>
      <div class="spoken" role="status" aria-live="polite">
        {session.spoken.value}
      </div>
    </article>
  );
}

function PartButton({ name, on, go }: { name: string; on: boolean; go: () => void }) {
  return (
    <button aria-pressed={on} onClick={go}>
      {name}
    </button>
  );
}

function Head({ session, title }: { session: Session; title: string }) {
  const status = session.status.value;
  const place = session.worktree.value?.folder ?? status?.workspace ?? "";
  return (
    <header class="head">
      <a class="quiet back" href="#/" aria-label="Back to the board">
        ‹
      </a>
      <div class="names">
        <h1 title={title}>{title}</h1>
        <p title={`${place} · ${status?.sandbox ?? ""}`}>
          {session.gone.value ? "read-only" : session.ended.value ? "ended" : <State session={session} />}
          {place && ` · ${short(place)}`}
        </p>
      </div>
      {status && <Model session={session} />}
      <Menu session={session} />
      <button class="quiet" onClick={() => closePane(session.session)} aria-label="Close this pane; the session keeps running" title="Close this pane">
        ✕
      </button>
      <Worktree session={session} />
    </header>
  );
}

function State({ session }: { session: Session }) {
  const [, tick] = useState(0);
  const running = session.running.value;
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [running]);
  if (session.waiting.value.length) return <span class="state asks">needs you</span>;
  if (!running) return <span class="state">ready</span>;
  return <span class="state works">working {Math.max(0, Math.floor((Date.now() - session.since.value) / 1000))} s</span>;
}

/** Actions that are needed now and then. */
function Menu({ session }: { session: Session }) {
  const box = useRef<HTMLDetailsElement>(null);
  const close = (): void => {
    if (box.current) box.current.open = false;
  };
  const act = (work: () => Promise<unknown>): void => {
    close();
    work().then(refresh, (error: unknown) => session.problem(error));
  };
  const name = session.session;
  const leave = async (method: string): Promise<void> => {
    await session.ask(method);
    closePane(name);
  };
  const copy = async (): Promise<void> => {
    const made = await host.call<Attached>("session.open", { workspace: session.status.value?.workspace ?? "", fork: name });
    openBeside(made.session);
  };
  return (
    <details
      class="menu"
      ref={box}
      onFocusOut={(focus) => !box.current?.contains(focus.relatedTarget as Node | null) && close()}
      onKeyDown={(key) => {
        if (key.key !== "Escape" || !box.current?.open) return;
        key.preventDefault();
        close();
        box.current.querySelector("summary")?.focus();
      }}
    >
      <summary class="quiet" aria-label="More" title="More">
        ⋯
      </summary>
      <div class="choices">
        <button onClick={() => act(() => session.ask("session.undo"))}>Undo the last turn</button>
        <button onClick={() => act(() => session.ask("session.compact"))}>Summarise the context</button>
        <button onClick={() => act(copy)}>Continue in a copy</button>
        <button onClick={() => act(() => leave("session.close"))} title="It stays in the list and can be opened again">
          End the session
        </button>
        <button class="danger" onClick={() => confirm("Delete this session's history? Files that it changed stay as they are.") && act(() => leave("session.delete"))}>
          Delete its history
        </button>
      </div>
    </details>
  );
}
