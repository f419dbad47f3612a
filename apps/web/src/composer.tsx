// Where the person writes. Enter sends; while an answer is being written, it redirects it.
import { useSignal, useSignalEffect } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Session } from "./session";

/** `drafts` stores what is typed and not sent yet. */
export function Composer({ session, drafts = sessionStorage }: { session: Session; drafts?: Pick<Storage, "getItem" | "setItem"> }) {
  const kept = `draft ${session.session}`;
  const text = useSignal(drafts.getItem(kept) ?? "");
  const box = useRef<HTMLTextAreaElement>(null);
  const running = session.running.value;
  const set = (value: string): void => {
    text.value = value;
    drafts.setItem(kept, value);
  };
  useLayoutEffect(() => {
    const here = box.current;
    if (!here) return;
    here.style.height = "auto";
    here.style.height = `${Math.min(240, here.scrollHeight + 2)}px`;
  }, [text.value, running]); // the placeholder may need two lines
  useSignalEffect(() => {
    const back = session.returned.value;
    if (!back) return;
    session.returned.value = "";
    const typed = text.peek();
    set(typed ? `${back}\n${typed}` : back);
    box.current?.focus();
  });
  const send = (how: "steer" | "queue"): void => {
    const said = text.value.trim();
    if (!said) return;
    set("");
    session.submit(said, how).catch((error: unknown) => {
      session.problem(error);
      if (!text.value) set(said); // so that nothing typed is lost
    });
  };
  const hint = (): string => {
    if (session.gone.value) return "This session is read-only";
    if (session.ended.value) return "This session has ended; a prompt reopens it";
    if (!running) return "What should be done?";
    return matchMedia("(hover: none)").matches ? "Redirect it now" : "Redirect it now: Enter. Queue: Alt Enter. Stop: Esc.";
  };
  return (
    <form
      class={running ? "composer running" : "composer"}
      onSubmit={(submit) => {
        submit.preventDefault();
        send("steer");
      }}
    >
      <textarea
        ref={box}
        rows={1}
        aria-label={running ? "Redirect the answer" : "Prompt"}
        placeholder={hint()}
        value={text.value}
        disabled={session.gone.value}
        onInput={(input) => set(input.currentTarget.value)}
        onKeyDown={(key) => {
          if (key.key === "Enter" && !key.shiftKey && !key.isComposing) {
            key.preventDefault();
            send(key.altKey ? "queue" : "steer");
          }
        }}
      />
      {running && (
        <button type="button" onClick={() => session.tell("turn.stop")} aria-label="Stop" title="Esc">
          ■
        </button>
      )}
      {running && text.value.trim() && (
        <button type="button" onClick={() => send("queue")} title="Send after this turn: Alt Enter">
          Queue
        </button>
      )}
      <button class="primary" disabled={!text.value.trim()} aria-label={running ? "Redirect" : "Send"}>
        {running ? "Redirect" : "Send"}
      </button>
    </form>
  );
}
