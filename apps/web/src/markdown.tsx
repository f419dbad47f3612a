// Light Markdown as nodes, never as HTML. While a text grows, only its last block is parsed again.
import type { ComponentChildren, JSX } from "preact";

export type Block =
  | { kind: "code"; text: string; lang: string }
  | { kind: "heading"; text: string; level: number }
  | { kind: "list"; items: { text: string; depth: number; mark: string }[] }
  | { kind: "quote" | "text"; text: string }
  | { kind: "table"; rows: string[][] }
  | { kind: "rule" };

const FENCE = /^ {0,3}(```+|~~~+)\s*([^`\s]*)/;
const MOST_ITEMS = 40; // a longer list is shown as several, so that its beginning need not be redrawn
const LINES = 40; // lines of code or output in one node
const ITEM = /^( *)([-*+]|\d{1,4}[.)])\s+(.*)$/;

/** A block, and where it begins and ends in its text. */
export interface Place {
  block: Block;
  from: number;
  end: number;
}

/** The blocks of a text from `start` on. */
export function read(text: string, start: number): Place[] {
  const found: Place[] = [];
  let at = start;
  const line = (): string => {
    const end = text.indexOf("\n", at);
    return text.slice(at, end < 0 ? text.length : end);
  };
  const next = (): void => {
    const end = text.indexOf("\n", at);
    at = end < 0 ? text.length : end + 1;
  };
  const lines = (goes: (line: string) => boolean): string[] => {
    const taken: string[] = [];
    while (at < text.length && goes(line())) {
      taken.push(line());
      next();
    }
    return taken;
  };
  while (at < text.length) {
    const first = line();
    if (!first.trim()) {
      next();
      continue;
    }
    let block: Block;
    const from = at;
    const fence = FENCE.exec(first);
    const heading = /^(#{1,6})\s+(.*)$/.exec(first);
    if (fence) {
      next();
      const mark = fence[1] ?? "```";
      const body = lines((one) => !(one.trim().startsWith(mark) && !one.trim().slice(mark.length).trim()));
      next();
      block = { kind: "code", text: body.join("\n"), lang: fence[2] ?? "" };
    } else if (heading) {
      next();
      block = { kind: "heading", text: heading[2] ?? "", level: (heading[1] ?? "").length };
    } else if (/^ {0,3}([-*_])( *\1){2,}\s*$/.test(first)) {
      next();
      block = { kind: "rule" };
    } else if (ITEM.test(first)) {
      const items: { text: string; depth: number; mark: string }[] = [];
      let count = 0;
      for (const one of lines((l) => !!l.trim() && (ITEM.test(l) ? ++count <= MOST_ITEMS : /^\s/.test(l)))) {
        const item = ITEM.exec(one);
        if (item) items.push({ depth: Math.min(4, (item[1] ?? "").length >> 1), mark: item[2] ?? "-", text: item[3] ?? "" });
        else if (items.length) items[items.length - 1]!.text += ` ${one.trim()}`;
      }
      block = { kind: "list", items };
    } else if (first.startsWith(">")) {
      block = { kind: "quote", text: lines((l) => l.startsWith(">")).map((l) => l.replace(/^> ?/, "")).join("\n") };
    } else if (first.startsWith("|")) {
      const rows = lines((l) => l.startsWith("|")).map((l) => l.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim()));
      block = { kind: "table", rows: rows.filter((row) => !row.every((cell) => /^:?-+:?$/.test(cell))) };
    } else {
      const body = lines((l) => !!l.trim() && !FENCE.test(l) && !/^#{1,6}\s/.test(l) && !ITEM.test(l));
      block = { kind: "text", text: body.join("\n") };
    }
    found.push({ block, from, end: at });
  }
  return found;
}

/** How many of the blocks later text cannot change: what follows them must have begun with a whole line. */
export function settled(text: string, found: Place[]): number {
  const last = found[found.length - 1];
  if (!last) return 0;
  return text.indexOf("\n", last.from) < 0 ? Math.max(0, found.length - 2) : found.length - 1;
}

const INLINE = /`+[^`\n]+`+|\*\*[^*\n]+\*\*|__[^_\n]+__|\*[^*\s][^*\n]*\*|!?\[[^\]\n]*\]\([^)\s]+\)|https?:\/\/[^\s<>"')\]]+/g;
const LONGEST = 8000; // a longer paragraph is shown as it is: it must not be searched again with every frame

/** Emphasis, code and links. A link leads only to the web, and its address is shown on hover; images are never loaded. */
export function inline(text: string): ComponentChildren {
  if (text.length > LONGEST) return text;
  const parts: ComponentChildren[] = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    const word = match[0];
    const before = text[match.index - 1] ?? " ";
    if (word.startsWith("*") && !word.startsWith("**") && /\w/.test(before)) continue;
    parts.push(text.slice(last, match.index));
    last = match.index + word.length;
    const link = /^(!?)\[([^\]]*)\]\(([^)\s]+)\)$/.exec(word);
    if (word.startsWith("`")) parts.push(<code>{word.replace(/^`+|`+$/g, "")}</code>);
    else if (word.startsWith("**") || word.startsWith("__")) parts.push(<strong>{word.slice(2, -2)}</strong>);
    else if (word.startsWith("*")) parts.push(<em>{word.slice(1, -1)}</em>);
    else if (link?.[1]) parts.push(`${link[2] ?? ""} (${link[3] ?? ""})`);
    else parts.push(anchor(link?.[3] ?? word, link?.[2] ?? word));
  }
  parts.push(text.slice(last));
  return parts;
}

function anchor(address: string, text: string): ComponentChildren {
  if (!/^https?:\/\//i.test(address)) return `${text} (${address})`;
  return (
    <a href={address} title={address} target="_blank" rel="noopener noreferrer">
      {text}
    </a>
  );
}

function copy(button: HTMLButtonElement, text: string): void {
  const tell = (word: string) => (): void => {
    button.textContent = word;
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  navigator.clipboard.writeText(text).then(tell("Copied"), tell("Not allowed"));
}

/** Splits lines into pieces: only the last one changes while a text grows. Shows the last `most` pieces. */
export function Lines({ text, most = Infinity }: { text: string; most?: number }) {
  const all = text.split("\n");
  const pieces: JSX.Element[] = [];
  const count = Math.ceil(all.length / LINES);
  for (let n = Math.max(0, count - most); n < count; n++) {
    const piece = all.slice(n * LINES, (n + 1) * LINES).join("\n");
    pieces.push(<span key={n}>{n < count - 1 ? `${piece}\n` : piece}</span>);
  }
  return <>{pieces}</>;
}

export function show(block: Block): JSX.Element {
  switch (block.kind) {
    case "code":
      if (!block.text) return <p hidden />; // its first line has not arrived, or never did
      return (
        <div class="code">
          <pre tabIndex={0} role="group" aria-label={block.lang ? `code, ${block.lang}` : "code"}>
            <Lines text={block.text} />
          </pre>
          <button onClick={(click) => copy(click.currentTarget, block.text)}>Copy</button>
        </div>
      );
    case "heading":
      return <p class={`h h${block.level}`}>{inline(block.text)}</p>;
    case "list":
      return (
        <ul class="list">
          {block.items.map((item) => (
            <li class={`depth${item.depth}`} data-mark={/\d/.test(item.mark) ? item.mark : "•"}>
              {inline(item.text)}
            </li>
          ))}
        </ul>
      );
    case "quote":
      return <blockquote>{inline(block.text)}</blockquote>;
    case "table":
      return (
        <div class="scroll">
          <table>
            {block.rows.map((row, n) => (
              <tr>{row.map((cell) => (n ? <td>{inline(cell)}</td> : <th scope="col">{inline(cell)}</th>))}</tr>
            ))}
          </table>
        </div>
      );
    case "rule":
      return <hr />;
    default:
      return <p>{inline(block.text)}</p>;
  }
}
