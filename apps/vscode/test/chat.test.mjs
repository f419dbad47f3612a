import assert from "node:assert/strict";
import test from "node:test";
import { Answer, messages } from "../dist/chat.mjs";

test("messages with tools and images become those of Chat Completions", () => {
  const asked = [
    { role: "user", content: [{ value: "what is " }, { value: "here?" }] },
    { role: "assistant", content: [{ value: "I look." }, { callId: "c1", name: "list", input: { path: "." } }] },
    { role: "user", content: [{ callId: "c1", content: [{ value: "a.py" }] }, { value: "go on" }] },
    { role: "user", content: [{ value: "and this" }, { mimeType: "image/png", data: Uint8Array.of(1, 2) }] },
  ];
  assert.deepEqual(messages(asked), [
    { role: "user", content: "what is here?" },
    { role: "assistant", content: "I look.", tool_calls: [{ id: "c1", type: "function", function: { name: "list", arguments: '{"path":"."}' } }] },
    { role: "tool", tool_call_id: "c1", content: "a.py" },
    { role: "user", content: "go on" },
    { role: "user", content: [{ type: "text", text: "and this" }, { type: "image_url", image_url: { url: "data:image/png;base64,AQI=" } }] },
  ]);
});

const event = (delta) => `data: ${JSON.stringify({ choices: [{ delta }] })}\n\n`;

test("a stream is read whole wherever it is cut", () => {
  const call = (index, more) => event({ tool_calls: [{ index, ...more }] });
  const whole = [
    event({ content: "Hel" }),
    event({ content: "lo" }),
    call(0, { id: "a", function: { name: "read", arguments: '{"path"' } }),
    call(0, { function: { arguments: ':"x"}' } }),
    call(1, { id: "b", function: { name: "list", arguments: "" } }),
    "data: [DONE]\n\n",
  ].join("");
  for (let at = 0; at < whole.length; at += 7) {
    const answer = new Answer();
    assert.equal(answer.text(whole.slice(0, at)) + answer.text(whole.slice(at)), "Hello");
    assert.deepEqual(answer.calls(), [
      { id: "a", name: "read", input: { path: "x" } },
      { id: "b", name: "list", input: {} },
    ]);
  }
});

test("errors and broken calls are said", () => {
  assert.throws(() => new Answer().text('data: {"error":{"message":"too long"}}\n'), /too long/);
  const answer = new Answer();
  answer.text(event({ tool_calls: [{ index: 0, id: "a", function: { name: "read", arguments: "{" } }] }));
  assert.throws(() => answer.calls(), /read.*not valid JSON/);
});
