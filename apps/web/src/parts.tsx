// Small parts of a session.
import { useSignal } from "@preact/signals";
import type { Session } from "./session";

export function Model({ session }: { session: Session }) {
  const names = useSignal<string[]>([]);
  const now = session.status.value?.model ?? "";
  const load = (): void => {
    if (!names.value.length)
      session.ask<string[]>("session.models").then(
        (found) => (names.value = found),
        () => undefined,
      );
  };
  return (
    <select class="model" aria-label="Model" value={now} onFocus={load} onMouseDown={load} onChange={(change) => session.tell("session.model", { model: change.currentTarget.value })}>
      {[...new Set([now, ...names.value])].map((name) => (
        <option value={name} selected={name === now}>
          {name}
        </option>
      ))}
    </select>
  );
}

export function Plan({ session }: { session: Session }) {
  const steps = session.plan.value;
  if (!steps.length) return null;
  const done = steps.filter((one) => one.status === "completed").length;
  return (
    <details class="plan" open={done < steps.length}>
      <summary>
        Plan <span class="count">{`${done} of ${steps.length}`}</span>
      </summary>
      <ol>
        {steps.map((one) => (
          <li class={one.status}>
            <span aria-hidden="true">{{ completed: "✓", in_progress: "▸", pending: "○" }[one.status]}</span> {one.step}
            <span class="spoken">{one.status.replace("_", " ")}</span>
          </li>
        ))}
      </ol>
    </details>
  );
}

export function Queued({ session }: { session: Session }) {
  if (!session.queued.value.length) return null;
  return (
    <ul class="queued" aria-label="Queued">
      {session.queued.value.map((text) => (
        <li>
          <span>{text}</span>
          <button class="quiet" onClick={() => session.withdraw(text)} aria-label={`Take back: ${text}`} title="Move it back into the prompt">
            ✕
          </button>
        </li>
      ))}
    </ul>
  );
}
