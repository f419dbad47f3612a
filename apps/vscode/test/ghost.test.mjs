import assert from "node:assert/strict";
import test from "node:test";
import { becomes, Known, quiet, Thought, trimmed } from "../dist/ghost.mjs";

test("typing that agrees keeps the rest of what is shown", () => {
  const known = new Known();
  known.add({ before: "x = ", after: "\n", text: "total(prices)" });
  assert.equal(known.find("x = ", "\n"), "total(prices)");
  assert.equal(known.find("x = tot", "\n"), "al(prices)");
  assert.equal(known.find("x = total(prices)", "\n"), undefined); // what follows a beginning has to be asked
  assert.equal(known.find("x = sum", "\n"), undefined);
  assert.equal(known.find("x = tot", "other\n"), undefined);
  assert.equal(known.find("x", "\n"), undefined); // backspace hides it
});

test("what follows is there at once, also that nothing does", () => {
  const known = new Known();
  known.add({ before: "x = ", after: "\n", text: "total" });
  known.add({ before: "x = total", after: "\n", text: "(prices)" });
  assert.equal(known.find("x = tot", "\n"), "al");
  assert.equal(known.find("x = total", "\n"), "(prices)");
  known.add({ before: "x = total(prices)", after: "\n", text: "" });
  assert.equal(known.find("x = total(prices)", "\n"), "");
  assert.equal(known.find("x = total(prices) ", "\n"), undefined);
});

test("the newest of two that agree is taken, and memory is bounded", () => {
  const known = new Known();
  known.add({ before: "a", after: "", text: "bc" });
  known.add({ before: "a", after: "", text: "bd" });
  assert.equal(known.find("ab", ""), "d");
  for (let n = 0; n < 200; n++) known.add({ before: `line ${n}`, after: "", text: "x" });
  assert.equal(known.find("ab", ""), undefined);
});

test("it keeps quiet where nobody wants it, and says why", () => {
  assert.equal(quiet("", false), undefined);
  assert.equal(quiet(")", false), undefined);
  assert.match(quiet("name", false), /inside a word/);
  assert.match(quiet(" + something(else)", false), /follow the cursor/);
  assert.match(quiet("", true), /selected/);
});

test("what stands behind the cursor is not written twice", () => {
  assert.equal(trimmed("price)", ")"), "price");
  assert.equal(trimmed("price", ")"), "price");
  assert.equal(trimmed("price  \n", ""), "price");
});

test("a hint says what changes, and no more", () => {
  assert.equal(becomes("    found.append(value * factor)", "    found.append(value * ratio)\n"), "factor → ratio");
  assert.equal(becomes("  f(a)", "  f(a, b)"), "→ f(a, b)"); // what is only added needs its place
  assert.equal(becomes("x = 1", ""), "(removed)");
  assert.equal(becomes("a", "b"), "→ b");
});

test("changes that belong together are one thought, however slowly a word is typed", () => {
  const one = new Thought("f(factor)", 0);
  // A minute later a word is typed with pauses: what was there before it counts, not half of it.
  for (const [text, at] of [["f(r)", 90_000], ["f(ra)", 90_500], ["f(rat)", 91_400], ["f(ratio)", 92_300]]) one.changed(text, at);
  assert.equal(one.base, "f(factor)");
  one.changed("f(ratio)\nx", 120_000); // long after
  assert.equal(one.base, "f(ratio)");
  for (let at = 120_500; at < 200_000; at += 500) one.changed(`f(ratio)\nx${at}`, at); // no pause, no new thought
  assert.equal(one.base, "f(ratio)");
  one.changed("y", 203_000);
  assert.equal(one.base, "f(ratio)\nx199500");
  one.end();
  one.changed("z", 203_100);
  assert.equal(one.base, "y");
});
