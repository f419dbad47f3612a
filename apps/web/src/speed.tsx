// How fast a session's model is: the last answer in one line, and all answers as plots and numbers.
import { useEffect, useRef } from "preact/hooks";
import type { Session } from "./session";
import type { Usage } from "./wire";

const number = new Intl.NumberFormat("en");

export function Speed({ usage }: { usage: Usage | undefined }) {
  if (!usage) return null;
  const full = usage.context_limit ? Math.round((100 * usage.context_used) / usage.context_limit) : 0;
  return (
    <span class="speed" title={`${usage.model}: ${number.format(usage.output_tokens)} tokens; context ${full}% full`}>
      <b>{number.format(Math.round(usage.tokens_per_second))}</b> tok/s<span class="first"> · first {Math.round(usage.ttft_seconds * 1000)} ms</span>
    </span>
  );
}

/** Loaded on demand: plots are a third of the app. */
export function Plots({ session }: { session: Session }) {
  const place = useRef<HTMLDivElement>(null);
  const count = session.usage.length;
  const seen = session.version.value;
  useEffect(() => {
    let gone = false;
    let remove = (): void => undefined;
    void import("./plots").then(({ draw }) => {
      if (!gone && place.current) remove = draw(place.current, session.usage);
    });
    return () => {
      gone = true;
      remove();
    };
  }, [session, count]);
  return (
    <section class="side plots" aria-label="Speed" data-seen={seen}>
      {count === 0 && <p class="empty">No answers yet.</p>}
      <div ref={place} />
      {count > 0 && <Numbers usage={session.usage} />}
    </section>
  );
}

function Numbers({ usage }: { usage: Usage[] }) {
  return (
    <table class="numbers">
      <caption>Answers, the newest first</caption>
      <thead>
        <tr>
          {["turn", "model", "in", "cached", "out", "tok/s", "first ms", "cost"].map((name) => (
            <th scope="col">{name}</th>
          ))}
        </tr>
      </thead>
      <tbody>
        {usage
          .slice(-50)
          .reverse()
          .map((one) => (
            <tr>
              <td>{one.turn}</td>
              <td>{one.model}</td>
              <td>{number.format(one.input_tokens)}</td>
              <td>{number.format(one.cached_tokens)}</td>
              <td>{number.format(one.output_tokens)}</td>
              <td>{number.format(Math.round(one.tokens_per_second))}</td>
              <td>{Math.round(one.ttft_seconds * 1000)}</td>
              <td>{one.cost == null ? "–" : one.cost.toFixed(4)}</td>
            </tr>
          ))}
      </tbody>
    </table>
  );
}
