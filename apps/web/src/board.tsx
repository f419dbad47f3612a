// The list of all sessions, those that need a person first, and the form for a new one.
import { signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ago, board, folder, host, members, nextTheme, openAlone, openBeside, palette, problem, refresh, short, shown, stored, theme } from "./state";
import type { Attached, SessionInfo } from "./wire";

export function Board() {
  const open = new Set(shown.value.map((one) => one.session));
  const filter = useSignal("");
  // Refresh when a session comes or goes, and when a turn ends: subagents are listed then.
  const live = host.live.value.map((one) => `${one.session}${one.running ? "+" : ""}`).join(" ");
  useEffect(() => {
    if (host.state.value === "open") refresh().catch(() => undefined);
  }, [live, host.state.value]);
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (info: SessionInfo): boolean => words.every((word) => `${info.title} ${info.workspace} ${info.model}`.toLowerCase().includes(word));
  return (
    <nav class="board" aria-label="Sessions">
      <header>
        <a href="#/" class="brand" aria-label="Fulgur, board">
          <img src="/app/icon.svg" alt="" width="24" height="24" />
          <span>Fulgur</span>
        </a>
        <span class="grow" />
        <button class="quiet find" onClick={() => (palette.value = true)} aria-label="Find sessions and commands, Ctrl K" title="Find sessions and commands">
          <kbd>Ctrl K</kbd>
        </button>
        <button class="quiet" onClick={nextTheme} aria-label={`Colours: ${theme.value}; change`} title={`Colours: ${theme.value}`}>
          {theme.value === "auto" ? "◐" : theme.value === "light" ? "○" : "●"}
        </button>
      </header>
      <NewSession />
      <input type="search" placeholder="Filter" aria-label="Filter sessions" value={filter.value} onInput={(input) => (filter.value = input.currentTarget.value)} />
      <div class="groups">
        {board.value.map((group) => {
          const found = group.sessions.filter(fits);
          return (
            found.length > 0 && (
              <section key={group.name} aria-label={group.name}>
                <h2>
                  {group.name} <span class="count">{found.length}</span>
                </h2>
                <ul>
                  {found.slice(0, 200).map((info) => (
                    <Row key={info.session} info={info} open={open.has(info.session)} />
                  ))}
                </ul>
              </section>
            )
          );
        })}
        {!board.value.length && <p class="empty">No sessions yet.</p>}
      </div>
    </nav>
  );
}

const unfolded = signal<Set<string>>(new Set()); // sessions with subagents shown; outlives a row that moves

function unfold(session: string): void {
  const now = new Set(unfolded.value);
  if (!now.delete(session)) now.add(session);
  unfolded.value = now;
}

function Row({ info, open }: { info: SessionInfo; open: boolean }) {
  const state = info.waiting ? "asks" : info.running ? "works" : info.unjudged ? "review" : info.live ? "rests" : "";
  const label = { asks: "needs you", works: "working", review: `${info.unjudged} to review`, rests: "", "": "" }[state];
  const own = members.value.get(info.session) ?? [];
  const isOpen = unfolded.value.has(info.session);
  return (
    <li class={open ? "open" : ""}>
      <a
        href={`#/${encodeURIComponent(info.session)}`}
        aria-current={open ? "true" : undefined}
        onClick={(click) => {
          click.preventDefault();
          (click.ctrlKey || click.metaKey ? openBeside : openAlone)(info.session);
        }}
      >
        <span class="title">{info.title || "New session"}</span>
        <span class="sub">
          {label && <span class={`chip ${state}`}>{label}</span>}
          {info.parent ? (
            <span class="place">{info.model}</span>
          ) : (
            <span class="place" title={info.workspace}>
              {short(info.workspace)}
              {info.worktree && " (worktree)"}
            </span>
          )}
          <span class="when">{ago(info.updated)}</span>
        </span>
      </a>
      {!open && shown.value.length > 0 && (
        <button class="quiet open-beside" onClick={() => openBeside(info.session)} aria-label={`Open ${info.title || "session"} beside`} title="Open beside">
          ◫
        </button>
      )}
      {own.length > 0 && (
        <button class="quiet members" aria-expanded={isOpen} onClick={() => unfold(info.session)}>
          {own.length} {own.length === 1 ? "subagent" : "subagents"}
        </button>
      )}
      {isOpen && (
        <ul>
          {own.map((member) => (
            <Row key={member.session} info={member} open={shown.value.some((one) => one.session === member.session)} />
          ))}
        </ul>
      )}
    </li>
  );
}

/** The folders that sessions have worked in, the newest first. */
function knownFolders(): string[] {
  const all = [...host.live.value, ...stored.value].sort((one, other) => other.updated - one.updated);
  return [...new Set([folder.value, ...all.map((info) => info.workspace)])].filter(Boolean).slice(0, 30);
}

function NewSession() {
  const text = useSignal("");
  const place = useSignal(folder.value);
  const tree = useSignal(false);
  const busy = useSignal(false);
  const box = useRef<HTMLTextAreaElement>(null);
  const start = async (): Promise<void> => {
    if (busy.value) return;
    busy.value = true;
    try {
      const made = await host.call<Attached>("session.open", { workspace: place.value.trim(), worktree: tree.value });
      folder.value = place.value.trim();
      const prompt = text.value.trim();
      if (prompt) await host.call("turn.submit", { session: made.session, text: prompt });
      text.value = "";
      if (shown.value.length && matchMedia("(min-width: 1100px)").matches) openBeside(made.session);
      else openAlone(made.session);
      setTimeout(() => [...document.querySelectorAll<HTMLElement>(".composer textarea")].pop()?.focus(), 50);
    } catch (error) {
      problem.value = error instanceof Error ? error.message : String(error);
    }
    busy.value = false;
  };
  return (
    <form
      class="new"
      aria-label="New session"
      onSubmit={(submit) => {
        submit.preventDefault();
        void start();
      }}
    >
      <textarea
        ref={box}
        id="new-prompt"
        rows={2}
        placeholder="New session: what should be done?"
        aria-label="Prompt of the new session"
        value={text.value}
        onInput={(input) => (text.value = input.currentTarget.value)}
        onKeyDown={(key) => {
          if (key.key === "Enter" && !key.shiftKey && !key.isComposing) {
            key.preventDefault();
            void start();
          }
        }}
      />
      <div class="row">
        <input class="folder" list="folders" aria-label="Folder" placeholder="/path/to/project" value={place.value} onInput={(input) => (place.value = input.currentTarget.value)} spellcheck={false} />
        <datalist id="folders">
          {knownFolders().map((one) => (
            <option value={one} />
          ))}
        </datalist>
      </div>
      <div class="row">
        <label title="Work on a separate branch, in a copy of the folder">
          <input type="checkbox" checked={tree.value} onChange={(input) => (tree.value = input.currentTarget.checked)} /> own worktree
        </label>
        <span class="grow" />
        <button class="primary" disabled={busy.value || !place.value.trim()}>
          Start
        </button>
      </div>
    </form>
  );
}
