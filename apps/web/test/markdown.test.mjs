// Markdown as it is read while a text grows: the same blocks as of the whole text, and nothing that becomes HTML.
import assert from "node:assert/strict";
import { test } from "node:test";
import { build } from "esbuild";

const made = await build({
  stdin: { contents: 'export * from "./src/markdown"; export { runsOf } from "./src/session"; export { exact } from "./src/text"; export { linesOf } from "./src/changes";', resolveDir: `${import.meta.dirname}/..` },
  bundle: true,
  write: false,
  format: "esm",
  jsx: "automatic",
  jsxImportSource: "preact",
});
const { runsOf, exact, inline, linesOf, read } = await import(`data:text/javascript;base64,${Buffer.from(made.outputFiles[0].text).toString("base64")}`);

const TEXT = `# Title
Some *words* and \`code\`
over two lines.
- one
  more of it
- two
   - deep
1. first

> quoted
> text

| a | b |
|---|---|
| 1 | 2 |
***
\`\`\`python
def f():

    return "# no heading"
\`\`\`
~~~
never closed
- no list`;

test("a text that grows has the blocks of the whole text", () => {
  const whole = read(TEXT, 0).map(({ block }) => block);
  for (const step of [1, 3, 7, 40]) {
    const entry = { text: "", open: true };
    for (let at = 0; at < TEXT.length; at += step) {
      entry.text += TEXT.slice(at, at + step);
      runsOf(entry);
    }
    entry.open = false;
    assert.deepEqual(runsOf(entry).flat(), whole, `in steps of ${step}`);
  }
  assert.deepEqual(whole.map((block) => block.kind), ["heading", "text", "list", "quote", "table", "rule", "code", "code"]);
});

test("blocks that cannot change stay the same objects", () => {
  const entry = { text: "one\n\ntwo\n\nthree", open: true };
  const [[first]] = runsOf(entry);
  entry.text += " and more";
  assert.equal(runsOf(entry)[0][0], first);
});

test("a long answer is made of runs that stay the same arrays, and a long list of lists", () => {
  const entry = { text: "word\n\n".repeat(60), open: true };
  const [full] = runsOf(entry);
  entry.text += "- item\n".repeat(100);
  const runs = runsOf(entry);
  assert.equal(runs[0], full);
  assert.deepEqual(runs.flat().filter((block) => block.kind === "list").map((block) => block.items.length), [40, 40, 20]);
  assert.ok(entry.text.length < 300, "what is finished is not read again");
});

test("links lead to the web only, and images are words", () => {
  const kinds = (text) => [inline(text)].flat().filter((part) => typeof part === "object").map((part) => part.type);
  assert.deepEqual(kinds("[a](javascript:alert(1)) ![b](http://c/d.png) <img src=x>"), []);
  assert.deepEqual(kinds("[a](https://b/c) and `d` and **e** and *f*"), ["a", "code", "strong", "em"]);
  assert.deepEqual(kinds("2 * 3 * 4 and snake_case_name"), []);
});

test("what hides in a text is named", () => {
  assert.equal(exact("a\u202eb\tc\u200b\n"), "a<U+202E>b\tc<U+200B>\n");
});

test("the lines around a hunk are not another hunk's", () => {
  const [first, second] = [{ id: "1", old_start: 2, new_start: 2, old: ["b\n"], new: ["B\n"] }, { id: "2", old_start: 4, new_start: 4, old: ["d\n"], new: ["D\n", "E\n"] }];
  const file = { path: "x", kind: "modified", old: "a\nb\nc\nd\ne\n", new: "a\nB\nc\nD\nE\ne\n", hunks: [first, second] };
  const shown = (hunk) => linesOf(file, hunk).map(({ sign, text, old, now }) => `${sign}${text} ${old ?? ""}:${now ?? ""}`);
  assert.deepEqual(shown(first), [" a 1:1", "-b 2:", "+B :2", " c 3:3"]);
  assert.deepEqual(shown(second), [" c 3:3", "-d 4:", "+D :4", "+E :5", " e 5:6"]);
});
