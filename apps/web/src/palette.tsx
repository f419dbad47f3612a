// Ctrl K: every session and command by name.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { board, nextTheme, openAlone, openBeside, palette, short, shown } from "./state";

interface Choice {
  name: string;
  hint: string;
  act: () => void;
}

function choices(): Choice[] {
  const all: Choice[] = [
    { name: "New session", hint: "command", act: () => document.getElementById("new-prompt")?.focus() },
    { name: "Board", hint: "command", act: () => (location.hash = "#/") },
    { name: "Change colours", hint: "command", act: nextTheme },
  ];
  for (const session of shown.value) {
    const name = session.title.value.slice(0, 40) || "session";
    all.push({ name: `Stop: ${name}`, hint: "command", act: () => session.tell("turn.stop") });
    all.push({ name: `Undo the last turn: ${name}`, hint: "command", act: () => session.tell("session.undo") });
    all.push({ name: `Keep all changes: ${name}`, hint: "command", act: () => void session.judge(true) });
  }
  for (const group of board.value) {
    for (const info of group.sessions) {
      const title = info.title || "New session";
      all.push({ name: title, hint: `${group.name.toLowerCase()} · ${short(info.workspace)}`, act: () => openAlone(info.session) });
      if (shown.value.length) all.push({ name: `Beside: ${title}`, hint: short(info.workspace), act: () => openBeside(info.session) });
    }
  }
  return all;
}

export function Palette() {
  const text = useSignal("");
  const at = useSignal(0);
  const box = useRef<HTMLInputElement>(null);
  const before = useRef(document.activeElement as HTMLElement | null);
  useEffect(() => {
    box.current?.focus();
    return () => before.current?.focus();
  }, []);
  const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = choices().filter((one) => words.every((word) => `${one.name} ${one.hint}`.toLowerCase().includes(word))).slice(0, 12);
  const now = Math.min(at.value, found.length - 1);
  const take = (choice: Choice | undefined): void => {
    palette.value = false;
    if (choice) setTimeout(choice.act, 0); // after the focus has returned
  };
  return (
    <div class="veil" onClick={() => take(undefined)}>
      <div class="palette" role="dialog" aria-modal="true" aria-label="Find sessions and commands" onClick={(click) => click.stopPropagation()}>
        <input
          ref={box}
          role="combobox"
          aria-expanded="true"
          aria-controls="choices"
          aria-activedescendant={found.length ? `choice-${now}` : undefined}
          aria-label="Find"
          placeholder="Find a session or a command"
          value={text.value}
          onInput={(input) => {
            text.value = input.currentTarget.value;
            at.value = 0;
          }}
          onKeyDown={(key) => {
            if (key.key === "Escape") take(undefined);
            else if (key.key === "Enter") take(found[now]);
            else if (key.key === "ArrowDown") at.value = Math.min(found.length - 1, now + 1);
            else if (key.key === "ArrowUp") at.value = Math.max(0, now - 1);
            else if (key.key !== "Tab") return; // there is nowhere else to go
            key.preventDefault();
            key.stopPropagation();
          }}
        />
        <ul id="choices" role="listbox" aria-label="Results">
          {found.map((one, n) => (
            <li id={`choice-${n}`} key={n} role="option" aria-selected={n === now} onClick={() => take(one)}>
              <span>{one.name}</span>
              <span class="hint">{one.hint}</span>
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}
