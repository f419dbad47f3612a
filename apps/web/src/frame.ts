// One frame for all sessions: what came is applied and drawn together, so that the page is laid out once.
import { batch } from "@preact/signals";

const HIDDEN_MS = 200; // a page that nobody sees gets no frames
const waiting = new Set<() => void>();
let asked = false;

/** Do this in the next frame. What is asked for twice is done once. */
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
