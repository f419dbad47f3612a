// What was said and done. It follows its end unless the person scrolled away.
import { Component } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Counts, counts, DiffText } from "./diff";
import { type Block, Lines, show } from "./markdown";
import { type Entry, runsOf, type Session } from "./session";
import { exact, plain } from "./text";

const FIRST = 300; // entries shown at once; older ones on demand

export function Log({ session }: { session: Session }) {
  const box = useRef<HTMLDivElement>(null);
  const inside = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const last = useRef(0);
  const [more, setMore] = useState(0);
  session.version.value; // subscribe: redraw whenever it changes
  // The observer runs after a frame's layout and before its paint, so following costs no layout of its own. Sizes also
  // change without an event: content skipped while out of sight gets its real size once it is seen.
  useEffect(() => {
    const grown = new ResizeObserver(() => {
      const here = box.current;
      if (!here || !follows.current) return;
      here.scrollTop = here.scrollHeight;
      last.current = here.scrollTop;
    });
    for (const one of [box.current, inside.current]) if (one) grown.observe(one);
    return () => grown.disconnect();
  }, []);
  const hidden = Math.max(0, session.entries.length - FIRST - more);
  const entries = session.entries.slice(hidden);
  return (
    <div
      class="log"
      role="log"
      aria-live="off"
      aria-label="Conversation"
      aria-busy={session.running.value}
      tabIndex={0}
      ref={box}
      onScroll={() => {
        const here = box.current;
        if (!here) return;
        const atEnd = here.scrollHeight - here.scrollTop - here.clientHeight < 40;
        if (atEnd || here.scrollTop < last.current) follows.current = atEnd; // only scrolling back leaves the end
        last.current = here.scrollTop;
        here.style.overflowAnchor = follows.current ? "none" : "auto";
      }}
    >
      <div class="entries" ref={inside}>
        {hidden > 0 && <button onClick={() => setMore(more + FIRST)}>Show {Math.min(FIRST, hidden)} earlier entries</button>}
        {!session.loaded.value && <p class="empty">{entries.length ? "" : "Loading…"}</p>}
        {session.loaded.value && !entries.length && <p class="empty">No messages yet.</p>}
        {entries.map((entry) => (
          <EntryView key={entry.key} entry={entry} rev={entry.rev} session={session} />
        ))}
      </div>
    </div>
  );
}

interface Props {
  entry: Entry;
  rev: number;
  session: Session;
}

class EntryView extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    return next.rev !== this.props.rev || next.entry !== this.props.entry;
  }

  override render({ entry, session }: Props) {
    switch (entry.kind) {
      case "user":
      case "steer":
        return (
          <div class={`said ${entry.kind}`}>
            {entry.kind === "steer" && <span class="tag">redirected</span>}
            {entry.text}
          </div>
        );
      case "text":
        return (
          <div class={`answer ${entry.open ? "open" : ""}`}>
            {runsOf(entry).map((run, n) => (
              <Run key={n} blocks={run} />
            ))}
          </div>
        );
      case "thought":
        return (
          <details class="thought">
            <summary>{entry.open ? "Thinking…" : "Thought"}</summary>
            <p>{entry.text}</p>
          </details>
        );
      case "tool":
        return <Tool entry={entry} />;
      case "diff":
        return <Changed entry={entry} />;
      case "variants":
        return <Variants entry={entry} session={session} />;
      default:
        return <p class={`note ${entry.kind}`}>{entry.text}</p>;
    }
  }
}

class Run extends Component<{ blocks: Block[] }> {
  override shouldComponentUpdate(next: { blocks: Block[] }): boolean {
    return next.blocks !== this.props.blocks;
  }
  override render({ blocks }: { blocks: Block[] }) {
    return (
      <div class="run">
        {blocks.map((block, n) => (
          <BlockView key={n} block={block} />
        ))}
      </div>
    );
  }
}

/** A closed block stays the same object and is not redrawn. */
class BlockView extends Component<{ block: Block }> {
  override shouldComponentUpdate(next: { block: Block }): boolean {
    return next.block !== this.props.block;
  }
  override render({ block }: { block: Block }) {
    return show(block);
  }
}

/** The title of a stored call, `NAME {arguments}`: what it was about. */
function titleOf(call: string): string {
  const at = call.indexOf(" ");
  try {
    const given = JSON.parse(call.slice(at + 1)) as Record<string, unknown>;
    if (typeof given["command"] === "string") return `$ ${given["command"]}`;
    return `${call.slice(0, at)} ${String(given["path"] ?? given["pattern"] ?? "")}`;
  } catch {
    return call.slice(0, 200);
  }
}

function Tool({ entry }: { entry: Entry }) {
  const title = exact(plain(entry.title ?? titleOf(entry.text)));
  const output = plain(entry.text);
  // A stored call does not record how it ended.
  const [mark, meaning] = entry.open ? ["…", "running"] : entry.ok === undefined ? ["·", "ran"] : entry.ok ? ["✓", "done"] : ["✗", "failed"];
  return (
    <details class={`tool ${entry.open ? "open" : entry.ok === false ? "failed" : "ok"}`} open={(entry.open || entry.ok === false) && !!output}>
      <summary>
        <span class="mark" aria-label={meaning} role="img">
          {mark}
        </span>
        <span class="name" title={title}>
          {title}
        </span>
        {entry.seconds !== undefined && entry.seconds >= 0.05 && <span class="time">{entry.seconds.toFixed(1)} s</span>}
      </summary>
      {output && (
        <pre class="output" tabIndex={0} role="group" aria-label="Output">
          <Lines text={output} most={10} />
        </pre>
      )}
    </details>
  );
}

function Changed({ entry }: { entry: Entry }) {
  const path = entry.title ?? /^\+\+\+ b\/(.*)$/m.exec(entry.text)?.[1] ?? "files";
  return (
    <details class="changed">
      <summary>
        <span class="name">{exact(path)}</span> <Counts {...counts(entry.text)} />
      </summary>
      <DiffText text={entry.text} />
    </details>
  );
}

function Variants({ entry, session }: { entry: Entry; session: Session }) {
  return (
    <section class="variants" aria-label="Variants">
      {(entry.variants ?? []).map((one) => (
        <div class="variant">
          <header>
            <b>Variant {one.number}</b> <span class={one.passes ? "good" : "bad"}>{one.passes ? "✓ checks pass" : "✗ checks fail"}</span>
          </header>
          <p class="reason">{one.reasons.join("; ")}</p>
          <DiffText text={one.diff} />
          {entry.open && <button onClick={() => void session.submit(`/take ${one.number}`).catch((error: unknown) => session.problem(error))}>Take variant {one.number}</button>}
        </div>
      ))}
    </section>
  );
}
