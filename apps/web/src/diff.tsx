// Unified diffs, shown as they are. Every line has a sign, because colour alone is not enough.
import { exact } from "./text";

const MOST_LINES = 400;

export function DiffText({ text }: { text: string }) {
  const lines = exact(text).split("\n").filter((line) => !/^(---|\+\+\+|diff |index |\\ No newline)/.test(line));
  while (lines.length && !lines[lines.length - 1]) lines.pop();
  return (
    <pre class="diff" tabIndex={0} role="group" aria-label="Changes">
      {lines.slice(0, MOST_LINES).map((line) => (
        <span class={line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : line.startsWith("@@") ? "at" : ""}>{`${line}\n`}</span>
      ))}
      {lines.length > MOST_LINES && <span class="at">{`… ${lines.length - MOST_LINES} more lines`}</span>}
    </pre>
  );
}

/** How many lines came and went; leaves out a zero. */
export function Counts({ added, removed }: { added: number; removed: number }) {
  return (
    <>
      {(added > 0 || !removed) && <span class="plus">+{added}</span>} {removed > 0 && <span class="minus">−{removed}</span>}
    </>
  );
}

export function counts(text: string): { added: number; removed: number } {
  let added = 0;
  let removed = 0;
  for (const line of text.split("\n")) {
    if (line.startsWith("+") && !line.startsWith("+++")) added++;
    else if (line.startsWith("-") && !line.startsWith("---")) removed++;
  }
  return { added, removed };
}
