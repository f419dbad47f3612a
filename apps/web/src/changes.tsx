// The session's changes that nobody has accepted or rejected yet: by file, by hunk, with comments on lines that go to
// the agent.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Counts } from "./diff";
import type { Session } from "./session";
import { exact } from "./text";
import type { FileChange, Hunk } from "./wire";

const AROUND = 3; // unchanged lines shown before and after a hunk
const MOST_LINES = 600;

interface Line {
  sign: " " | "+" | "-";
  text: string;
  old: number | undefined;
  now: number | undefined;
}

const bare = (line: string): string => line.replace(/\r?\n$/, "");

/** A hunk with the lines around it, unless they belong to another hunk. */
export function linesOf(file: FileChange, hunk: Hunk): Line[] {
  const now = (file.new ?? "").split("\n");
  const start = hunk.new_start - 1;
  const end = start + hunk.new.length;
  const around = (from: number, to: number, shift: number): Line[] =>
    now.slice(Math.max(0, from), Math.max(0, to)).map((text, n) => ({ sign: " ", text: bare(text), old: Math.max(0, from) + n + 1 + shift, now: Math.max(0, from) + n + 1 }));
  const shift = hunk.old_start - hunk.new_start;
  const after = shift + hunk.old.length - hunk.new.length;
  const last = now[now.length - 1] === "" ? now.length - 1 : now.length;
  const at = file.hunks.indexOf(hunk);
  const [before, next] = [file.hunks[at - 1], file.hunks[at + 1]];
  const from = Math.max(start - AROUND, before ? before.new_start - 1 + before.new.length : 0);
  const to = Math.min(end + AROUND, last, next ? next.new_start - 1 : last);
  return [
    ...around(from, start, shift),
    ...hunk.old.map((text, n): Line => ({ sign: "-", text: bare(text), old: hunk.old_start + n, now: undefined })),
    ...hunk.new.map((text, n): Line => ({ sign: "+", text: bare(text), old: undefined, now: hunk.new_start + n })),
    ...around(end, to, after),
  ];
}

/** `open` shows a file in an editor, if there is one. */
export function Changes({ session, open }: { session: Session; open?: (path: string) => void }) {
  const files = session.changes.value;
  const box = useRef<HTMLElement>(null);
  const judged = useRef<{ at: number; of: number } | undefined>(undefined);
  // When a hunk was judged by key and disappears, focus the next one. The list may arrive once more before that.
  useEffect(() => {
    const hunks = box.current?.querySelectorAll<HTMLElement>(".hunk");
    if (!hunks || !judged.current || hunks.length >= judged.current.of) return;
    (hunks[Math.min(judged.current.at, hunks.length - 1)] ?? box.current)?.focus();
    judged.current = undefined;
  }, [files]);
  /** j and k move between hunks; y and n accept or reject the focused one. */
  const keys = (key: KeyboardEvent): void => {
    const target = key.target as HTMLElement;
    if (target.matches("input, textarea") || key.ctrlKey || key.metaKey || key.altKey || !box.current) return;
    const hunks = [...box.current.querySelectorAll<HTMLElement>(".hunk")];
    const at = hunks.findIndex((one) => one.contains(target));
    if (key.key === "j" || key.key === "k") {
      const next = hunks[Math.max(0, Math.min(hunks.length - 1, at < 0 ? 0 : at + (key.key === "j" ? 1 : -1)))];
      next?.focus();
      next?.scrollIntoView({ block: "nearest" });
    } else if ((key.key === "y" || key.key === "n") && at >= 0) {
      judged.current = { at, of: hunks.length };
      hunks[at]?.querySelector<HTMLButtonElement>(key.key === "y" ? ".keep" : ".reject")?.click();
    } else return;
    key.preventDefault();
  };
  return (
    <section class="side changes" aria-label="Changes" ref={box} onKeyDown={keys} tabIndex={0}>
      {!files.length && <p class="empty">No changes to review.</p>}
      {files.length > 0 && (
        <div class="row all">
          <span>
            {files.length} {files.length === 1 ? "file" : "files"}
          </span>
          <span class="keys">
            <kbd>j</kbd> <kbd>k</kbd> move · <kbd>y</kbd> keep · <kbd>n</kbd> reject
          </span>
          <span class="grow" />
          <button onClick={() => void session.judge(true)}>Keep all</button>
          <button onClick={() => void session.judge(false)}>Reject all</button>
        </div>
      )}
      {files.map((file) => (
        <File key={file.path} session={session} file={file} open={open} />
      ))}
    </section>
  );
}

function File({ session, file, open }: { session: Session; file: FileChange; open?: (path: string) => void }) {
  const added = file.hunks.reduce((sum, hunk) => sum + hunk.new.length, 0);
  const removed = file.hunks.reduce((sum, hunk) => sum + hunk.old.length, 0);
  return (
    <section class="file" aria-label={file.path}>
      <header class="row">
        <h2>
          {open ? (
            <button class="link" onClick={() => open(file.path)}>
              {exact(file.path)}
            </button>
          ) : (
            exact(file.path)
          )}
        </h2>
        {file.kind !== "modified" && <span class="chip">{file.kind}</span>}
        <Counts added={added} removed={removed} />
        <span class="grow" />
        {file.hunks.length !== 1 && (
          <span class="pair">
            <button aria-label={`Keep file ${file.path}`} onClick={() => void session.judge(true, file.path)}>
              Keep file
            </button>
            <button aria-label={`Reject file ${file.path}`} onClick={() => void session.judge(false, file.path)}>
              Reject file
            </button>
          </span>
        )}
      </header>
      {!file.hunks.length && <p class="empty">Not a text file.</p>}
      {file.hunks.map((hunk) => (
        <HunkView key={hunk.id} session={session} file={file} hunk={hunk} />
      ))}
    </section>
  );
}

function HunkView({ session, file, hunk }: { session: Session; file: FileChange; hunk: Hunk }) {
  const lines = linesOf(file, hunk);
  const commented = useSignal<number | undefined>(undefined);
  const where = `${file.path}, line ${hunk.new_start}`;
  return (
    <div class="hunk" tabIndex={-1} role="group" aria-label={where}>
      <div class="lines">
        {lines.slice(0, MOST_LINES).map((line, n) => (
          <>
            <div class={`line ${line.sign === "+" ? "plus" : line.sign === "-" ? "minus" : ""}`}>
              <button class="number" data-old={line.old ?? ""} data-now={line.now ?? ""} aria-label={`Comment on line ${line.now ?? line.old ?? 0}${line.sign === "-" ? ", removed" : ""}`} title="Comment on this line" onClick={() => (commented.value = commented.value === n ? undefined : n)} />
              <span class="sign">{line.sign}</span>
              <code>{exact(line.text)}</code>
            </div>
            {commented.value === n && <Comment session={session} file={file} line={line} close={() => (commented.value = undefined)} />}
          </>
        ))}
        {lines.length > MOST_LINES && <p class="empty">… {lines.length - MOST_LINES} more lines</p>}
      </div>
      <div class="row judge">
        <button class="keep" aria-label={`Keep ${where}`} onClick={() => void session.judge(true, file.path, hunk.id)}>
          ✓ Keep
        </button>
        <button class="reject" aria-label={`Reject ${where}`} onClick={() => void session.judge(false, file.path, hunk.id)}>
          ✕ Reject
        </button>
      </div>
    </div>
  );
}

function Comment({ session, file, line, close }: { session: Session; file: FileChange; line: Line; close: () => void }) {
  const text = useSignal("");
  const box = useRef<HTMLTextAreaElement>(null);
  useEffect(() => box.current?.focus(), []);
  const where = line.sign === "-" ? `the removed line ${line.old ?? 0}` : `line ${line.now ?? 0}`;
  const send = (): void => {
    if (!text.value.trim()) return;
    const words = `Comment on ${where} of ${file.path}:\n\n    ${line.text.trim()}\n\n${text.value.trim()}`;
    session.submit(words).then(close, (error: unknown) => session.problem(error));
  };
  return (
    <form
      class="comment"
      onSubmit={(submit) => {
        submit.preventDefault();
        send();
      }}
    >
      <textarea
        ref={box}
        rows={2}
        aria-label={`Comment on ${where}`}
        placeholder={session.running.value ? "Comment: redirects the agent" : "Comment: goes to the agent"}
        value={text.value}
        onInput={(input) => (text.value = input.currentTarget.value)}
        onKeyDown={(key) => {
          if (key.key === "Enter" && !key.shiftKey && !key.isComposing) {
            key.preventDefault();
            send();
          } else if (key.key === "Escape") {
            key.preventDefault();
            close();
          }
        }}
      />
      <div class="row">
        <button class="primary" disabled={!text.value.trim()}>
          Send
        </button>
        <button type="button" onClick={close}>
          Cancel
        </button>
      </div>
    </form>
  );
}
