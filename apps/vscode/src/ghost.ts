// Which ghost text to show: what is already known for text that was typed further, or what must be requested.
// Independent of the editor.

export interface Shown {
  /** The buffer up to the cursor at the time of the request, and what follows the cursor. */
  before: string;
  after: string;
  /** The completion; "" if the model would show nothing. */
  text: string;
}

const MOST = 64;

/** Completions by the text they were requested for; those that agree with the typing stay, so nothing flickers. */
export class Known {
  private entries: Shown[] = [];

  add(entry: Shown): void {
    this.entries = [entry, ...this.entries.filter((old) => old.before !== entry.before || old.after !== entry.after)];
    this.entries.length = Math.min(this.entries.length, MOST);
  }

  /** The rest of a known completion once the text up to the cursor has become `before`. "": show nothing here.
   * Undefined: request one. */
  find(before: string, after: string): string | undefined {
    for (const entry of this.entries) {
      if (entry.after !== after || !before.startsWith(entry.before)) continue;
      const typed = before.slice(entry.before.length);
      // One typed to its end says nothing about what follows: it is the beginning of the line, seldom all of it.
      if (entry.text.startsWith(typed) && (typed.length < entry.text.length || !entry.text)) return entry.text.slice(typed.length);
    }
    return undefined;
  }

  clear(): void {
    this.entries = [];
  }
}

/** Why no ghost text is requested at a place; undefined if it is. */
export function quiet(lineAfter: string, selected: boolean): string | undefined {
  if (selected) return "text is selected";
  if (/^[\w]/.test(lineAfter)) return "the cursor is inside a word";
  if (lineAfter.trim().length > 8) return "more than a few characters follow the cursor on its line";
  return undefined;
}

/** A completion as it is inserted: without what the line already has after the cursor. */
export function trimmed(text: string, lineAfter: string): string {
  const rest = lineAfter.trimEnd();
  if (rest && text.endsWith(rest)) return text.slice(0, text.length - rest.length);
  return text.replace(/\s+$/, "");
}

const APART_MS = 20_000; // changes further apart do not belong to one thought
const LONGEST_MS = 60_000; // a thought that lasts this long ends at the next pause
const PAUSE_MS = 2_000; // nobody pauses this long in the middle of a word

/** What a buffer was before a group of related changes; requests for following edits include it. */
export class Thought {
  base: string;
  private since: number;
  private last: number;

  constructor(
    private text: string,
    now: number,
  ) {
    this.base = text;
    this.since = this.last = now;
  }

  changed(text: string, now: number): void {
    const gap = now - this.last;
    if (gap > APART_MS || (gap > PAUSE_MS && now - this.since > LONGEST_MS) || this.base === this.text) {
      this.base = this.text;
      this.since = now;
    }
    this.text = text;
    this.last = now;
  }

  /** End the thought: nothing more follows from the changes so far. */
  end(): void {
    this.base = this.text;
  }
}

/** What a line becomes, in the shortest form: the words that change, or the whole new line. */
export function becomes(old: string, fresh: string): string {
  const words = (text: string): string[] => text.trim().match(/\w+|\s+|[^\w\s]/g) ?? [];
  const [before, after] = [words(old), words(fresh)];
  let head = 0;
  while (head < Math.min(before.length, after.length) && before[head] === after[head]) head++;
  let tail = 0;
  while (tail < Math.min(before.length, after.length) - head && before.at(-1 - tail) === after.at(-1 - tail)) tail++;
  const [gone, come] = [before, after].map((one) => one.slice(head, one.length - tail).join("").trim());
  if (!after.length) return "(removed)";
  return gone && come && before.length > 1 ? `${gone} → ${come}` : `→ ${after.join("")}`;
}
