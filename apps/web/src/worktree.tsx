// A session's own worktree: merged into the folder it came from, or removed.
import { useSignal } from "@preact/signals";
import type { Session } from "./session";
import { closePane, problem, refresh } from "./state";
import { exact } from "./text";
import type { Merged } from "./wire";

export function Worktree({ session }: { session: Session }) {
  const tree = session.worktree.value;
  const merged = useSignal<Merged | undefined>(undefined);
  const sure = useSignal(false);
  const busy = useSignal(false);
  if (!tree) return null;
  const act = async (work: () => Promise<void>): Promise<void> => {
    busy.value = true;
    try {
      await work();
    } catch (error) {
      problem.value = error instanceof Error ? error.message : String(error);
    }
    busy.value = false;
  };
  const merge = (): Promise<void> => act(async () => void (merged.value = await session.merge()));
  const resolve = (): Promise<void> =>
    act(async () => {
      await session.ask("worktree.resolve");
      merged.value = undefined;
    });
  const discard = (): Promise<void> =>
    act(async () => {
      await session.ask("session.close", { discard: true });
      closePane(session.session);
      await refresh();
    });
  const result = merged.value;
  return (
    <div class="tree">
      <span class="branch" title={tree.folder}>
        worktree on <code>{tree.branch}</code>
      </span>
      {result && (
        <span role="status" class={result.merged ? "good" : "bad"}>
          {result.text}
        </span>
      )}
      <span class="grow" />
      {sure.value ? (
        <>
          <span>Remove the worktree and its branch?</span>
          <button class="danger" disabled={busy.value} onClick={() => void discard()}>
            Remove
          </button>
          <button onClick={() => (sure.value = false)}>Cancel</button>
        </>
      ) : (
        <>
          {result && result.conflicts.length > 0 && (
            <button class="primary" disabled={busy.value || session.running.value} onClick={() => void resolve()} title="Bring the folder's changes in here and let the agent resolve the conflicts">
              Let the agent resolve it
            </button>
          )}
          <button class={result ? "" : "primary"} disabled={busy.value || session.running.value} onClick={() => void merge()} title="Commit the changes and merge them into the original folder">
            Merge
          </button>
          <button disabled={busy.value || session.running.value} onClick={() => (sure.value = true)}>
            {result?.merged ? "Remove" : "Discard"}
          </button>
        </>
      )}
      {result && result.conflicts.length > 0 && (
        <ul class="conflicts" aria-label="Conflicts">
          {result.conflicts.map((path) => (
            <li>{exact(path)}</li>
          ))}
        </ul>
      )}
    </div>
  );
}
