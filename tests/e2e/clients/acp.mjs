// The TypeScript SDK of ACP, the one that editors are written with, drives every method of `fulgur acp`.
//   node acp.mjs SDK FOLDER COMMAND…
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [sdk, cwd, command, ...words] = process.argv.slice(2);
const { ClientSideConnection, ndJsonStream, PROTOCOL_VERSION } = await import(pathToFileURL(sdk).href);
const agent = spawn(command, words, { stdio: ["pipe", "pipe", "inherit"] });

const updates = [];
let asked = 0;
let look = () => undefined; // called whenever an update came
const client = {
  sessionUpdate: ({ sessionId, update }) => {
    updates.push({ sessionId, ...update });
    look();
  },
  requestPermission: ({ options }) => {
    asked += 1;
    return { outcome: { outcome: "selected", optionId: options.find((one) => one.kind === "allow_once").optionId } };
  },
};
const connection = new ClientSideConnection(() => client, ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout)));
const said = (sessionId, kind = "agent_message_chunk") =>
  updates.filter((one) => one.sessionId === sessionId && one.sessionUpdate === kind).map((one) => one.content.text).join("");
const prompt = (sessionId, text) => connection.prompt({ sessionId, prompt: [{ type: "text", text }] });
const until = (probe) => new Promise((done) => (look = () => probe() && done())).finally(() => (look = () => undefined));

const about = await connection.initialize({ protocolVersion: PROTOCOL_VERSION, clientCapabilities: {} });
assert.equal(about.protocolVersion, PROTOCOL_VERSION);
assert.deepEqual(Object.keys(about.agentCapabilities.sessionCapabilities).sort(), ["close", "delete", "fork", "list", "resume"]);
await connection.authenticate({ methodId: "none" });
const { sessionId, modes, configOptions } = await connection.newSession({ cwd, mcpServers: [] });
assert.deepEqual(configOptions.map((one) => one.id), ["mode", "model"]);
assert.ok(modes.availableModes.length > 1);

// Options, a prompt, a question.
await connection.setSessionConfigOption({ sessionId, configId: "model", value: "scripted" });
await connection.setSessionMode({ sessionId, modeId: "auto" });
assert.equal((await prompt(sessionId, "hello")).stopReason, "end_turn");
assert.equal(said(sessionId), "Hello from the script.");
assert.ok(updates.some((one) => one.sessionUpdate === "usage_update" && one._meta.fulgur));
await prompt(sessionId, "outside");
assert.equal(asked, 1);

// Redirected in mid-stream, in all three ways, and stopped.
const steer = (text, more = {}) => connection.extMethod("_session/steering", { sessionId, prompt: [{ type: "text", text }], ...more });
assert.deepEqual(await steer("x", { idleBehavior: "promptRequired" }), { outcome: "promptRequired" });
for (const redirect of [() => steer("hello by method"), () => prompt(sessionId, "hello by prompt"), () => prompt(sessionId, "/steer hello by word")]) {
  updates.length = 0;
  const counting = prompt(sessionId, "count");
  await until(() => said(sessionId).includes("four one"));
  await redirect();
  assert.equal((await counting).stopReason, "end_turn");
  assert.match(said(sessionId), /^(one two three four )+.*Hello from the script\.$/s);
}
updates.length = 0;
const stopped = prompt(sessionId, "count");
await until(() => said(sessionId).includes("one"));
await connection.cancel({ sessionId });
assert.equal((await stopped).stopReason, "cancelled");

// Listed, forked, closed, loaded with its history, resumed without it, deleted.
const listed = async () => (await connection.listSessions({ cwd })).sessions.map((one) => one.sessionId);
assert.ok((await listed()).includes(sessionId));
const fork = await connection.unstable_forkSession({ sessionId, cwd, mcpServers: [] });
assert.notEqual(fork.sessionId, sessionId);
await connection.closeSession({ sessionId });
await assert.rejects(prompt(sessionId, "hello"));
updates.length = 0;
assert.equal((await connection.loadSession({ sessionId, cwd, mcpServers: [] })).modes.currentModeId, "auto");
assert.ok(said(sessionId, "user_message_chunk").startsWith("hello"));
updates.length = 0;
assert.ok((await connection.resumeSession({ sessionId, cwd, mcpServers: [] })).configOptions);
assert.equal(said(sessionId), "");
assert.equal((await prompt(sessionId, "hello")).stopReason, "end_turn");
await connection.deleteSession({ sessionId });
assert.ok(!(await listed()).includes(sessionId));
console.log("all methods");
agent.stdin.end();
