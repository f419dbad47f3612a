// One frame for all sessions: events are applied and drawn together, so that the page is laid out once.
import { batch } from "@preact/signals";

const HIDDEN_MS = 200; // a hidden page gets no animation frames
const waiting = new Set<() => void>();
let asked = false;

/** Run `work` in the next frame; repeated requests for the same work run it once. */
export function inNextFrame(work: () => void): void {
  waiting.add(work);
  if (asked) return;
  asked = true;
  if (document.hidden) setTimeout(run, HIDDEN_MS);
  else requestAnimationFrame(run);
}

function run(): void {
  asked = false;
  const all = [...waiting];
  waiting.clear();
  batch(() => all.forEach((work) => work()));
}
