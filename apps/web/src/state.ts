// What the whole page shares: the host, the open sessions, the list of all sessions, and the appearance.
import { computed, effect, signal } from "@preact/signals";
import { Session } from "./session";
import { Host, type SessionInfo } from "./wire";

export const host = new Host();
export const folder = signal(localStorage.getItem("folder") ?? "");
export const stored = signal<SessionInfo[]>([]);
export const palette = signal(false);
export const problem = signal("");
export type Theme = "auto" | "light" | "dark";
export const theme = signal<Theme>((localStorage.getItem("theme") as Theme | null) ?? "auto");

effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
  localStorage.setItem("theme", theme.value);
});
effect(() => localStorage.setItem("folder", folder.value));

export function nextTheme(): void {
  theme.value = theme.value === "auto" ? "light" : theme.value === "light" ? "dark" : "auto";
}

// ---- which sessions are shown: `#/ID/ID`, so that a reload and the back button find them ---------------------

const sessions = new Map<string, Session>();
export const shown = signal<Session[]>([]);

export function route(): void {
  const names = location.hash.startsWith("#/") ? location.hash.slice(2).split("/").filter(Boolean).map(decodeURIComponent) : [];
  for (const [name, session] of sessions) {
    if (!names.includes(name)) {
      host.unfollow(session);
      sessions.delete(name);
    }
  }
  shown.value = [...new Set(names)].map((name) => {
    const session = sessions.get(name) ?? new Session(host, name);
    sessions.set(name, session);
    return session;
  });
}

function go(names: string[]): void {
  location.hash = names.length ? `#/${names.map(encodeURIComponent).join("/")}` : "#/";
}

export const openAlone = (name: string): void => go([name]);
export const openBeside = (name: string): void => go([...new Set([...shown.value.map((one) => one.session), name])]);
export const closePane = (name: string): void => go(shown.value.map((one) => one.session).filter((one) => one !== name));

// ---- the board ----------------------------------------------------------------------------------------------

export const board = computed(() => {
  const live = new Map(host.live.value.map((info) => [info.session, info]));
  const all = [...live.values(), ...stored.value.filter((info) => !live.has(info.session)).map((info) => ({ ...info, live: false, running: false, waiting: 0 }))];
  const known = new Set(all.map((info) => info.session));
  const newest = (one: SessionInfo, other: SessionInfo): number => other.updated - one.updated;
  const take = (fits: (info: SessionInfo) => boolean): SessionInfo[] => all.filter((info) => !known.has(info.parent) && fits(info)).sort(newest);
  return [
    { name: "Needs you", sessions: take((info) => info.waiting > 0) },
    { name: "Working", sessions: take((info) => info.running && !info.waiting) },
    { name: "To review", sessions: take((info) => !info.running && !info.waiting && info.unjudged > 0) },
    { name: "Earlier", sessions: take((info) => !info.running && !info.waiting && !info.unjudged) },
  ].filter((group) => group.sessions.length);
});

/** Subagents and variants, grouped by the session that they worked for. */
export const members = computed(() => Map.groupBy(stored.value.filter((info) => info.parent), (info) => info.parent));

export async function refresh(): Promise<void> {
  stored.value = await host.call<SessionInfo[]>("session.list", {}, true);
}

/** The last part of a path. */
export const short = (path: string): string => path.replace(/\/+$/, "").split("/").pop() || path;

export function ago(seconds: number): string {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 60) return "now";
  if (past < 3600) return `${Math.floor(past / 60)} min`;
  if (past < 86400) return `${Math.floor(past / 3600)} h`;
  return `${Math.floor(past / 86400)} d`;
}
