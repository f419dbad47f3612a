"""The host: many sessions in one process, found by id, shared by all connected clients."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from fulgur.agent.agent import Agent
from fulgur.agent.host import worktree
from fulgur.agent.host.session import HostedSession, open_session, stored_info, with_own_options
from fulgur.agent.host.worktree import Worktree
from fulgur.agent.session.log import SessionLog, find_session, summaries
from fulgur.agent.session.state import SessionState
from fulgur.config.settings import Settings, load_settings
from fulgur.errors import FulgurError
from fulgur.protocol.agent import Warned
from fulgur.protocol.host import Open, SessionInfo
from fulgur.protocol.session import SessionSummary, TranscriptEntry
from fulgur.tools.shell import ShellArguments
from fulgur.workspace import folders

MOST_SESSIONS = 64
REST_SECONDS = 1800.0  # an idle session without clients is closed after this; opening it again is quick


class Host:
    """Opens, finds, lists and closes sessions."""

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(6)
        self.sessions: dict[str, HostedSession] = {}
        self.used = time.monotonic()
        self._opening: dict[str, asyncio.Lock] = {}

    async def open(self, asked: Open) -> HostedSession:
        """Open a new session, a stored one (or the live one with that id), or a copy of one."""
        self.used = time.monotonic()
        workspace = Path(asked.workspace)
        if not workspace.is_absolute():
            raise FulgurError(f"{asked.workspace} is not an absolute path")
        settings = load_settings(
            workspace, profile=asked.profile, model=asked.model, overrides=list(asked.overrides) or None
        )
        if asked.session is not None:
            return await self._stored(find_session(settings.home, asked.session, settings.workspace).stem, settings)
        if asked.fork is not None:
            source = find_session(settings.home, asked.fork, settings.workspace)
            return await self._add(await Agent.open(with_own_options(settings, source), fork=source.stem), None)
        if not asked.worktree:
            return await self._add(await Agent.open(settings), None)
        name = f"{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        tree = await asyncio.to_thread(worktree.make, settings, name)
        try:
            inside = load_settings(
                tree.folder, profile=asked.profile, model=asked.model, overrides=list(asked.overrides) or None
            )
            session = await self._add(await Agent.open(inside), tree)
        except BaseException:
            await asyncio.to_thread(worktree.remove, tree)
            raise
        if command := settings.text("worktree.setup"):
            await _set_up(session, command)
        return session

    async def get(self, name: str) -> HostedSession:
        """Return a session by id: the live one, or one opened from disk in its own workspace."""
        self.used = time.monotonic()
        if name in self.sessions:
            return self.sessions[name]
        summary = _stored_summary(name)
        if summary.subagent:
            raise FulgurError("a subagent's session is read-only", hint="Continue in its parent session.")
        if not Path(summary.workspace).is_dir():
            raise FulgurError(f"the folder that this session worked in is gone: {summary.workspace}")
        return await self._stored(name, load_settings(Path(summary.workspace)))

    def read(self, name: str) -> Sequence[TranscriptEntry]:
        """The transcript, also of a session that cannot go on: a subagent's, or one whose folder is gone."""
        return SessionState.read(SessionLog(Path(_stored_summary(name).path))).transcript

    def list(self, workspace: str | None) -> list[SessionInfo]:
        """List sessions: those that wait for a person, then running ones, then by time. Subagents appear once they have
        ended."""
        live = [session.info() for session in self.sessions.values()]
        chosen = Path(workspace).resolve() if workspace else None
        known = summaries(folders.home(), chosen)
        parents = {member: summary for summary in known for member in summary.members}
        stored = [
            stored_info(summary, parents.get(summary.session_id))
            for summary in known
            if summary.session_id not in self.sessions and (not summary.subagent or summary.session_id in parents)
        ]
        found = [info for info in live if chosen is None or Path(info.workspace) == chosen] + stored
        return sorted(found, key=lambda info: (info.waiting == 0, not info.running, -info.updated))

    async def close(self, name: str, *, discard: bool = False) -> None:
        """End a live session; its file stays. `discard` also removes its worktree."""
        session = self.sessions.pop(name, None)
        if session is None:
            return
        await session.close()
        if discard and session.worktree is not None:
            await asyncio.to_thread(worktree.remove, session.worktree)

    async def delete(self, name: str) -> None:
        """End a session and remove its file; its changes in the workspace stay."""
        await self.close(name)
        path = Path(_stored_summary(name).path)
        for file in (path, path.with_suffix(".journal")):
            file.unlink(missing_ok=True)

    async def close_all(self) -> None:
        """End all sessions, when the host ends."""
        await asyncio.gather(*(self.close(name) for name in [*self.sessions]))

    async def put_away(self) -> None:
        """Close idle sessions; called now and then."""
        now = time.monotonic()
        for name, session in [*self.sessions.items()]:
            if not session.clients and not session.agent.running and now - session.used > REST_SECONDS:
                await self.close(name)

    @property
    def idle_seconds(self) -> float:
        """Seconds since a client was connected or a turn ran."""
        if any(session.clients or session.agent.running for session in self.sessions.values()):
            self.used = time.monotonic()
        return time.monotonic() - self.used

    async def _stored(self, name: str, settings: Settings) -> HostedSession:
        """Open a stored session once, even if two clients ask for it at the same time."""
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self.sessions:
                settings = with_own_options(settings, find_session(settings.home, name, settings.workspace))
                await self._add(await Agent.open(settings, session=name), worktree.of(settings))
        self._opening.pop(name, None)
        return self.sessions[name]

    async def _add(self, agent: Agent, tree: Worktree | None) -> HostedSession:
        if len(self.sessions) >= MOST_SESSIONS:
            await agent.close()
            raise FulgurError(f"{MOST_SESSIONS} sessions are already open", hint="Close one first.")
        session = await open_session(agent, self.epoch, tree)
        self.sessions[session.id] = session
        return session


def _stored_summary(name: str) -> SessionSummary:
    for summary in summaries(folders.home()):
        if summary.session_id == name:
            return summary
    raise FulgurError(f"no session named {name!r}")


async def _set_up(session: HostedSession, command: str) -> None:
    """Run a worktree's set-up command in the sandbox; a failure is shown, and the session goes on."""
    try:
        result = await session.agent.bench.shell.run(ShellArguments(command=command, timeout=600), lambda text: None)
        output, ok = result.output, result.ok
    except FulgurError as error:
        output, ok = str(error), False
    if not ok:
        session.emit(Warned(message=f"worktree.setup (`{command}`) failed", hint=output[-2000:]))
