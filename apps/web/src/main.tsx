// The page: log in with the link's ticket, then show the board and the open sessions.
import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { Board } from "./board";
import { Palette } from "./palette";
import { Pane } from "./pane";
import { board, folder, host, palette, problem, refresh, route, shown } from "./state";

const refused = signal("");

/** The ticket from `fulgur app` is in the URL's fragment; remove it from the URL and the history at once. */
async function logIn(): Promise<void> {
  const ticket = location.hash.slice(1);
  if (!ticket || ticket.startsWith("/")) return;
  history.replaceState(null, "", "/");
  const answer = await fetch("/login", { method: "POST", body: JSON.stringify({ ticket }) });
  if (answer.ok) folder.value = ((await answer.json()) as { workspace: string }).workspace || folder.value;
  else refused.value = (await answer.text()).trim();
}

function App() {
  const state = host.state.value;
  const open = shown.value;
  useEffect(() => {
    const waits = board.value[0]?.name === "Needs you" ? `(${board.value[0].sessions.length}) ` : "";
    document.title = `${waits}Fulgur`;
  }, [board.value]);
  if (state === "out") return <LoggedOut />;
  return (
    <div class={`app ${open.length ? "has-open" : "is-board"} ${open.length > 1 ? "many" : ""}`}>
      <a class="skip" href="#main" onClick={(click) => (click.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the sessions
      </a>
      <Board />
      <main id="main" tabIndex={-1} aria-label="Open sessions">
        {open.map((session) => (
          <Pane key={session.session} session={session} />
        ))}
        {!open.length && <Welcome />}
      </main>
      {state !== "open" && (
        <div class="banner" role="status">
          {state === "connecting" ? "Connecting…" : "The connection to the host was lost; trying again. Your sessions are kept. If the host has ended, run fulgur app."}
        </div>
      )}
      {problem.value && (
        <div class="banner bad" role="alert">
          {problem.value} <button onClick={() => (problem.value = "")}>Dismiss</button>
        </div>
      )}
      {palette.value && <Palette />}
    </div>
  );
}

function Welcome() {
  return (
    <div class="welcome">
      <img src="/app/icon.svg" alt="" width="56" height="56" />
      <h1>Fulgur</h1>
      <p>Start a session on the left, or open one. The same sessions are in your terminal (<code>fulgur attach</code>) and in your editor.</p>
      <dl>
        <dt>
          <kbd>Enter</kbd>
        </dt>
        <dd>sends; while an answer is written, redirects it</dd>
        <dt>
          <kbd>Alt</kbd> <kbd>Enter</kbd>
        </dt>
        <dd>queues for after this turn</dd>
        <dt>
          <kbd>Esc</kbd>
        </dt>
        <dd>stops</dd>
        <dt>
          <kbd>Ctrl</kbd> <kbd>K</kbd>
        </dt>
        <dd>finds sessions and commands</dd>
      </dl>
    </div>
  );
}

function LoggedOut() {
  return (
    <main class="welcome" id="main">
      <img src="/app/icon.svg" alt="" width="56" height="56" />
      <h1>Fulgur</h1>
      {refused.value && <p role="alert">The link was not accepted: {refused.value}.</p>}
      <p>
        Run <code>fulgur app</code> in a terminal; it opens this page with a link that logs you in.
      </p>
    </main>
  );
}

window.addEventListener("keydown", (key) => {
  if ((key.ctrlKey || key.metaKey) && key.key.toLowerCase() === "k") {
    key.preventDefault();
    palette.value = !palette.value;
  }
});

await logIn();
window.addEventListener("hashchange", route);
const place = document.getElementById("app");
if (place) render(<App />, place);
route();
void host.run();
if (host.state.value !== "out") await refresh();
