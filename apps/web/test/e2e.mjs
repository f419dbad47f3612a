// The web app in Chromium on a scripted model: what a person does with it, from the link to the merged worktree.
//   node test/e2e.mjs FULGUR SCREENSHOTS
// Environment: CHROMIUM (default /usr/bin/chromium).
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const require = createRequire(import.meta.url);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [fulgur, pictures] = process.argv.slice(2);
const root = mkdtempSync(join(tmpdir(), "fulgur-web-"));
const home = join(root, "home");
const project = join(root, "shop");
mkdirSync(home);
mkdirSync(project);
mkdirSync(pictures, { recursive: true });

// ---- a project, and a model that plays a script
const git = (...words) => execFileSync("git", ["-c", "user.name=a", "-c", "user.email=a@b", ...words], { cwd: project, encoding: "utf8" });
writeFileSync(join(project, "cart.py"), `def total(prices):\n    result = 0\n    for price in prices:\n        result = result + price\n    return result\n\n\ndef count(items):\n    return len(items)\n\n\ndef names(items):\n    return [item.name for item in items]\n`);
git("init", "-q", "-b", "main");
git("add", "-A");
git("commit", "-qm", "A shop");
const edit = (from, to) => ({ call: "edit", arguments: { path: "cart.py", old: from, new: to } });
const prose = "The cart adds its prices one by one. That is fine for a few, and `sum` says the same in one word.\n\n## What I found\n\n- `total` walks over **all** prices\n- `count` is only `len`\n\n```python\ndef total(prices):\n    return sum(prices)\n```\n\nNext I look at the callers, and at the tests that pin the rounding. ";
// Whatever a model, a file or a command says is shown as it is: in paragraphs, lists, tables, headings, names and output.
const HOSTILE = [
  "<img src=x onerror=pwned=1>",
  "<script>pwned=1</script>",
  "<svg onload=pwned=1>",
  '<iframe srcdoc="<script>parent.pwned=1</script>"></iframe>',
  "<style>* { display: none }</style>",
  '<base href="//evil.test">',
  '<meta http-equiv=refresh content="0;url=//evil.test">',
  "<form action=//evil.test><input></form>",
  "<a href=javascript:pwned=1>a</a>",
  "[b](javascript:pwned=1)",
  "[c](JaVaScRiPt:pwned=1)",
  "[d](data:text/html,<script>pwned=1</script>)",
  "![pixel](http://127.0.0.1:9/x.png)",
  "```html\n<script>pwned=1</script>\n```",
  "| <img src=x onerror=pwned=1> | b |\n|---|---|\n| <b>c</b> | d |",
  "> <img src=x onerror=pwned=1>",
  "- <img src=x onerror=pwned=1>",
  "# <img src=x onerror=pwned=1>",
  "`<img src=x onerror=pwned=1>` **<img src=x onerror=pwned=1>** *<img src=x onerror=pwned=1>*",
  "&lt;img src=x onerror=pwned=1&gt;",
  "<x onfocus=pwned=1 tabindex=0 autofocus>",
];
const script = {
  rate: 400,
  reply: [
    { match: "^Comment on", times: 1, steps: [edit("    return sum(prices)", "    return sum(prices, 0)")] },
    { match: "^Comment on", steps: [{ text: "Done: the start is written out." }] },
    { match: "explain", steps: [{ reasoning: "They want to know how the cart works." }, { text: prose.repeat(2000) }] },
    { match: "briefly", steps: [{ text: "In short: it adds up prices." }] },
    { match: "simplify", times: 1, steps: [{ call: "update_plan", arguments: { plan: [{ step: "Read cart.py", status: "completed" }, { step: "Use sum", status: "in_progress" }, { step: "Run the tests", status: "pending" }] } }] },
    { match: "simplify", times: 1, steps: [{ text: "I use `sum`." }, edit("    result = 0\n    for price in prices:\n        result = result + price\n    return result", "    return sum(prices)")] },
    { match: "simplify", times: 1, steps: [edit("    return [item.name for item in items]", "    return sorted(item.name for item in items)")] },
    { match: "simplify", steps: [{ text: "`total` uses **sum** now, and `names` are sorted.\n\n| function | lines before | after |\n|---|---|---|\n| total | 5 | 2 |\n| names | 2 | 2 |" }] },
    { match: "outside", times: 1, steps: [{ call: "shell", arguments: { command: "echo allowed > approved.txt", unsandboxed: true, reason: "to show it" } }] },
    { match: "outside", steps: [{ text: "It ran." }] },
    { match: "docstring", times: 1, steps: [edit("def count(items):\n", 'def count(items):\n    """How many items there are."""\n')] },
    { match: "docstring", steps: [{ text: "`count` says what it does." }] },
    { match: "round", after: "function_call_output", steps: [{ text: "`total` rounds." }] },
    { match: "round", times: 1, steps: [edit("return sum(prices, 0)", "return round(sum(prices, 0), 2)")] },
    { match: "round", steps: [edit("return sum(prices, 0)", "return int(sum(prices, 0) * 100 + 0.5) / 100")] },
    { match: "Resolve the conflicts", times: 1, steps: [{ call: "shell", arguments: { command: "sed -i '/^<<<<<<< /d;/^=======$/,/^>>>>>>> /d' cart.py" } }] },
    { match: "Resolve the conflicts", steps: [{ text: "Resolved: `count` takes iterators." }] },
    { match: "conflict", times: 1, steps: [edit("    return len(items)", "    return len(list(items))")] },
    { match: "conflict", steps: [{ text: "`count` takes iterators." }] },
    { match: "evil", times: 1, steps: [{ call: "update_plan", arguments: { plan: [{ step: HOSTILE[0], status: "in_progress" }] } }] },
    { match: "evil", times: 1, steps: [{ call: "shell", arguments: { command: `printf '%s\\n' '${HOSTILE[0]}' '\u001b]8;;javascript:pwned=1\u001b\\\\click\u001b]8;;\u001b\\\\'; false` } }] },
    { match: "evil", times: 1, steps: [{ call: "apply_patch", arguments: { patch: `*** Begin Patch\n*** Add File: ${HOSTILE[0]}\u202e.txt\n+${HOSTILE[1]}\n*** End Patch` } }] },
    { match: "evil", steps: [{ text: `${HOSTILE.join("\n\n")}\n\nthe last of it` }] },
    { match: "again", steps: [{ text: "Here again." }] },
  ],
};
writeFileSync(join(home, "script.json"), JSON.stringify(script));
writeFileSync(join(home, "server.toml"), `[server]\nport = 0\n\n[models.scripted]\nbackend = "scripted"\npath = "${join(home, "script.json")}"\n`);
writeFileSync(join(home, "config.toml"), `model = "scripted"\n`);
const env = { ...process.env, FULGUR_HOME: home };
const link = () => execFileSync(fulgur, ["app", "--no-open", "-C", project], { env, encoding: "utf8" }).split("\n")[0].trim();

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
// Waits for conditions, never for time; the limit is for what is broken, so a busy machine does not reach it.
const LIMIT_MS = 120_000;
async function until(what, probe) {
  const end = Date.now() + LIMIT_MS;
  for (;;) {
    const found = await probe();
    if (found) return found;
    if (Date.now() > end) throw new Error(`waited in vain: ${what}`);
    await pause(50);
  }
}
const passed = (what) => console.log(`ok  ${what}`);

let browser;
try {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "dark", bypassCSP: false });
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT_MS);
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("console", (line) => line.type() === "error" && wrong.push(line.text()));
  const picture = async (name) => page.screenshot({ path: join(pictures, `${name}.png`) });
  const looked = async (name) => {
    await picture(name);
    // A script element would break the page's own policy; the debugger's evaluation does not.
    const found = await page.evaluate(`${axe}; axe.run(document, { resultTypes: ["violations"] })`);
    const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
    assert.deepEqual(serious.map((one) => `${one.id}: ${one.nodes.map((node) => `${node.target} ${node.failureSummary}`).join(" | ")}`), [], name);
    passed(`axe-core: nothing serious (${name})`);
  };

  // ---- the login: a link that works once, and leaves no trace in the address
  const address = link();
  const origin = new URL(address).origin;
  await page.goto(address);
  await page.waitForSelector(".welcome");
  await until("the board", () => page.locator(".banner").count().then((n) => !n));
  assert.equal(page.url(), `${origin}/`);
  const [cookie] = await context.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite], [true, "Strict"]);
  await looked("1-board-empty");
  const stranger = await (await browser.newContext()).newPage();
  await stranger.goto(address);
  await stranger.getByText("was already used").waitFor();
  await stranger.goto(`${origin}/`);
  await stranger.getByText("Run fulgur app").waitFor();
  await stranger.screenshot({ path: join(pictures, "2-logged-out.png") });
  passed("the link logs in once; a stranger is sent away");

  const frames = createServer((_, answer) => answer.setHeader("content-type", "text/html").end(`<iframe src="${origin}/"></iframe>`)).listen(0, "127.0.0.1");
  await new Promise((ready) => frames.once("listening", ready));
  const other = await context.newPage();
  await other.goto(`http://127.0.0.1:${frames.address().port}/`);
  const framed = other.frames()[1];
  assert.equal(framed ? await framed.locator("#app").count().catch(() => 0) : 0, 0);
  // The other port gets the cookie sent, and is refused for its origin.
  const socket = await other.evaluate((to) => new Promise((done) => {
    const one = new WebSocket(to, "fulgur.host");
    one.onopen = () => done("open");
    one.onerror = () => done("refused");
  }), `${origin.replace("http", "ws")}/host`);
  assert.equal(socket, "refused");
  await other.close();
  frames.close();
  passed("a framing page shows nothing, a page of another port gets no socket");

  // ---- two sessions at once
  const start = async (text, worktree = false) => {
    await page.getByLabel("Prompt of the new session").fill(text);
    await page.getByLabel("own worktree").setChecked(worktree);
    const panes = await page.locator(".pane").count();
    await page.getByLabel("Prompt of the new session").press("Enter");
    await until("another pane", async () => (await page.locator(".pane").count()) > panes);
    return page.locator(".pane").nth(panes);
  };
  const ended = (pane) => until("the end of the turn", async () => !(await pane.locator(".state.works").count()));
  const first = await start("explain the cart");
  await first.locator(".answer").first().waitFor();
  const second = await start("simplify the cart, with a plan");
  await second.locator(".log").getByText("names are sorted").waitFor();
  await picture("3-two-sessions");
  passed("two sessions work at once");

  // ---- reload in mid-turn: nothing is lost
  const text = () => first.locator(".answer").first().textContent();
  await until("the first still writes", () => first.locator(".state.works").count());
  const before = await text();
  await page.reload();
  await first.locator(".answer").first().waitFor();
  await until("more text than before", async () => (await text()).length > before.length);
  assert.ok((await text()).startsWith(before.slice(0, before.length - 200)));
  assert.equal(await first.locator(".said.user").count(), 1);
  passed("a reload in mid-turn loses nothing");

  // ---- a queued prompt is taken back into the composer
  const composer = first.locator(".composer textarea");
  await composer.fill("for later");
  await composer.press("Alt+Enter");
  await first.locator(".queued").getByText("for later").waitFor();
  await picture("4-queued");
  await first.getByRole("button", { name: "Take back: for later" }).click();
  await until("it is in the composer", async () => (await composer.inputValue()) === "for later");
  assert.equal(await first.locator(".queued").count(), 0);
  await composer.fill("");
  passed("a queued prompt is taken back");

  // ---- steer in mid-stream, with Enter
  await first.locator(".composer textarea").fill("say it briefly");
  await first.locator(".composer textarea").press("Enter");
  await first.locator(".log").getByText("In short: it adds up prices.").waitFor();
  assert.equal(await first.locator(".said.steer").innerText().then((said) => said.includes("say it briefly")), true);
  await ended(first);
  const atEnd = () => first.locator(".log").evaluate((log) => log.scrollHeight - log.scrollTop - log.clientHeight < 2);
  await until("the log follows its end", atEnd);
  await looked("4-steered");
  passed("an answer is redirected in mid-stream");

  // ---- changes: a hunk rejected with the keyboard, a comment on a line
  await second.getByRole("button", { name: /^Changes/ }).click();
  await second.locator(".hunk").first().waitFor();
  assert.equal(await second.locator(".hunk").count(), 2);
  await looked("5-changes");
  await second.locator(".changes").focus();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("n");
  await until("the hunk is taken back", () => !readFileSync(join(project, "cart.py"), "utf8").includes("sorted("));
  assert.ok(readFileSync(join(project, "cart.py"), "utf8").includes("return sum(prices)"));
  passed("a hunk is rejected by key; the other stays");
  await until("one hunk", async () => (await second.locator(".hunk").count()) === 1);
  await until("the hunk that is left has the focus", () => second.locator(".hunk").evaluate((hunk) => hunk === document.activeElement));
  await ended(second);
  await second.getByLabel("Comment on line 2", { exact: true }).click();
  await second.locator(".comment textarea").fill("write the start out");
  await picture("6-comment");
  await second.locator(".comment textarea").press("Enter");
  await until("the comment was followed", () => readFileSync(join(project, "cart.py"), "utf8").includes("sum(prices, 0)"));
  await second.getByRole("button", { name: "Chat", exact: true }).click();
  await second.locator(".log").getByText("Done: the start is written out.").waitFor();
  assert.ok((await second.locator(".said.user").last().innerText()).includes("Comment on line 2 of cart.py"));
  passed("a comment on a line goes to the agent");

  // ---- an approval, on the board and by key
  await ended(second);
  await second.locator(".composer textarea").fill("run it outside");
  await second.locator(".composer textarea").press("Enter");
  await second.locator(".question").waitFor();
  await page.locator('section[aria-label="Needs you"]').waitFor();
  await looked("7-approval");
  assert.equal(existsSync(join(project, "approved.txt")), false);
  await until("the guard ends", () => second.locator(".question .primary").isEnabled());
  await second.locator(".question .title").focus();
  await page.keyboard.press("y");
  assert.ok(await second.locator(".composer textarea").evaluate((box) => box === document.activeElement));
  await second.locator(".log").getByText("It ran.").waitFor();
  assert.equal(readFileSync(join(project, "approved.txt"), "utf8"), "allowed\n");
  passed("a command is approved by key");

  // ---- hostile text is text
  await ended(second);
  const elsewhere = [];
  page.on("request", (request) => new URL(request.url()).host !== new URL(origin).host && elsewhere.push(request.url()));
  await second.locator(".composer textarea").fill("evil");
  await second.locator(".composer textarea").press("Enter");
  await second.locator(".log").getByText("the last of it").waitFor();
  await ended(second); // an address whose bracket has not come yet is still a link
  await second.getByRole("button", { name: /^Changes/ }).click();
  await second.locator(".file h2").getByText("<U+202E>").waitFor(); // what reorders a name is named
  await looked("7b-hostile-changes");
  await second.getByRole("button", { name: "Chat", exact: true }).click();
  await looked("7c-hostile");
  const inside = (tags) => second.evaluate((pane, names) => [...pane.querySelectorAll(names)].map((node) => node.outerHTML), tags);
  assert.deepEqual(await inside("img, script, svg, iframe, style, base, meta, object, embed, x, form:not(.composer), a:not(.back), .log input"), []);
  assert.deepEqual([await page.evaluate(() => window.pwned), elsewhere], [undefined, []]);
  passed(`${HOSTILE.length} ways to smuggle HTML in stay text, and nothing is fetched from elsewhere`);

  // ---- a second browser: it sees the same, answers, and ends the session; the next prompt opens it again
  const friend = await (await browser.newContext({ viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true })).newPage();
  friend.setDefaultTimeout(LIMIT_MS);
  await friend.goto(link());
  await friend.locator(".groups").getByText("explain the cart").click();
  await friend.locator(".log").getByText("In short: it adds up prices.").waitFor();
  await first.locator(".composer textarea").fill("explain it once more");
  await first.locator(".composer textarea").press("Enter");
  await friend.locator(".answer.open").waitFor();
  await friend.locator(".composer textarea").fill("briefly, please");
  await friend.screenshot({ path: join(pictures, "7d-phone-running.png") });
  await friend.getByRole("button", { name: "Redirect" }).click();
  await first.locator(".said.steer").getByText("briefly, please").waitFor();
  await ended(first);
  await friend.getByLabel("More").click();
  await friend.getByRole("button", { name: "End the session" }).click();
  await first.locator(".head").getByText("ended").waitFor();
  await picture("7e-ended-elsewhere");
  await first.locator(".composer textarea").fill("again");
  await first.locator(".composer textarea").press("Enter");
  await first.locator(".log").getByText("Here again.").waitFor();
  await friend.close();
  passed("two browsers share a session; one that was ended goes on with the next prompt");

  // ---- speed
  await second.getByRole("button", { name: "Speed", exact: true }).click();
  await second.locator(".plots canvas").nth(1).waitFor();
  await looked("8-speed");
  passed("plots of speed and first token");
  await page.reload();
  await second.locator(".speed b").waitFor();

  // ---- a worktree, merged and removed
  git("add", "-A");
  git("commit", "-qm", "Mine");
  await page.goto(`${origin}/#/`);
  const third = await start("add a docstring", true);
  await third.locator(".log").getByText("says what it does").waitFor();
  assert.ok(!readFileSync(join(project, "cart.py"), "utf8").includes("How many"));
  await third.getByRole("button", { name: /^Changes/ }).waitFor();
  await looked("9-worktree");
  await third.getByRole("button", { name: "Merge" }).click();
  await third.getByText("Merged into").waitFor();
  assert.ok(readFileSync(join(project, "cart.py"), "utf8").includes("How many items there are."));
  assert.equal(git("status", "--porcelain"), "");
  await picture("10-merged");
  await third.getByRole("button", { name: "Remove" }).click();
  await third.getByRole("button", { name: "Remove" }).click();
  await until("the branch is gone", () => !git("branch").includes("fulgur/"));
  passed("a worktree is merged and removed");
  await page.locator(".groups").getByText("add a docstring").click();
  await page.locator(".pane .note").getByText("is gone").waitFor();
  await picture("10b-gone");

  // ---- a worktree that conflicts: said, and nothing is touched
  await page.goto(`${origin}/#/`);
  const fourth = await start("make a conflict", true);
  await fourth.locator(".log").getByText("takes iterators").waitFor();
  const mine = readFileSync(join(project, "cart.py"), "utf8").replace("return len(items)", "return 0");
  writeFileSync(join(project, "cart.py"), mine);
  git("commit", "-qam", "Mine too");
  await fourth.getByRole("button", { name: "Merge" }).click();
  await fourth.locator(".conflicts").getByText("cart.py").waitFor();
  await looked("11-conflict");
  assert.equal(readFileSync(join(project, "cart.py"), "utf8"), mine);
  passed("a conflict is shown, and the folder is as it was");
  await fourth.getByRole("button", { name: "Let the agent resolve it" }).click();
  await fourth.locator(".log").getByText("Resolved:").waitFor();
  await ended(fourth);
  await fourth.getByRole("button", { name: "Merge" }).click();
  await fourth.getByText("Merged into").waitFor();
  assert.ok(readFileSync(join(project, "cart.py"), "utf8").includes("len(list(items))"));
  passed("the agent resolves it in the worktree, and it is merged");

  // ---- variants beside each other
  await page.goto(`${origin}/#/`);
  const fifth = await start("");
  await fifth.locator(".composer textarea").fill("/variants 2 round the total");
  await fifth.locator(".composer textarea").press("Enter");
  await until("two variants", async () => (await fifth.locator(".variant").count()) === 2);
  await ended(fifth);
  await looked("12-variants");
  await fifth.getByRole("button", { name: "Take variant 1" }).click();
  await until("the variant is in the file", () => /round\(|\/ 100/.test(readFileSync(join(project, "cart.py"), "utf8")));
  passed("one of two variants is taken");
  await page.getByRole("button", { name: "2 subagents" }).click();
  await page.locator(".groups li li").getByText("variant-2").waitFor();
  await looked("12b-members");
  await page.locator(".groups li li").getByText("variant-1").click();
  await page.locator(".pane .note").getByText("is read-only").waitFor();
  await page.locator(".pane .said.user").getByText("round the total").waitFor();
  await picture("12c-member");
  passed("a variant stands under its session, and is read");

  // ---- keyboard only: the palette
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Find" }).fill("simplify");
  await looked("13-palette");
  await page.keyboard.press("Enter");
  await page.locator(".pane .log").first().getByText("names are sorted").waitFor();
  passed("a session is found and opened with the keyboard");
  await picture("14-wide");

  // ---- light, and a phone
  await page.getByLabel(/^Colours/).click();
  await looked("15-light");
  await page.setViewportSize({ width: 390, height: 844 });
  await looked("16-phone-session");
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  await page.getByRole("button", { name: /^Changes/ }).click();
  await picture("17-phone-changes");
  await page.getByLabel("Back to the board").click();
  await page.getByLabel("Prompt of the new session").waitFor();
  await looked("18-phone-board");
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  passed("everything fits a phone");

  assert.deepEqual(wrong, []);
  passed("nothing went wrong in the page, and nothing broke its policy");

  // ---- the host ends: it is said, and what is typed stays
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.locator(".groups a").first().click();
  await page.locator(".composer textarea").waitFor();
  process.kill(JSON.parse(readFileSync(join(home, "host.json"), "utf8")).pid);
  await page.locator(".banner").getByText("connection to the host was lost").waitFor();
  await page.locator(".composer textarea").fill("typed while it is gone");
  await page.locator(".composer textarea").press("Enter");
  await page.locator(".note.bad").getByText("nothing was sent").waitFor();
  assert.equal(await page.locator(".composer textarea").inputValue(), "typed while it is gone");
  await looked("19-host-gone");
  passed("a host that ended is told, and nothing typed is lost");
} finally {
  await browser?.close();
  for (const note of ["host.json", "server.json"]) {
    try {
      process.kill(JSON.parse(readFileSync(join(home, note), "utf8")).pid);
    } catch {}
  }
  await pause(500);
  rmSync(root, { recursive: true, force: true });
}
