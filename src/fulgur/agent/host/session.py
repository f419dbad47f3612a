"""One session of the host: an agent, its numbered events, and its changes that nobody has accepted or rejected yet."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path

import msgspec

from fulgur.agent.agent import Agent
from fulgur.agent.host import worktree as worktree_of
from fulgur.agent.host.buffers import EditorBuffers
from fulgur.agent.host.feed import Feed
from fulgur.agent.host.review import JUDGED, Review
from fulgur.agent.host.worktree import Worktree
from fulgur.agent.session.history import message
from fulgur.agent.session.log import read_records
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol import agent as events
from fulgur.protocol.host import Attached, FileChange, Merged, SessionInfo, Submit, Submitted
from fulgur.protocol.session import SessionSummary

_USAGE = "usage"  # the record type for an answer's numbers
_MOST_USAGE = 2000
_OPTIONS = "options"  # the record type for options chosen for this session
_KEPT = ("sandbox_mode", "approval_policy")
_NEVER_KEPT = "danger-full-access"  # leaving the sandbox is chosen anew each time
_REMEMBERED = 256  # message ids, so that one sent again after a lost connection is handled once


class HostedSession:
    """`id` names it for clients; `clients` counts those attached."""

    def __init__(self, agent: Agent, epoch: str, worktree: Worktree | None) -> None:
        self.agent = agent
        self.id = agent.state.log.id
        self.epoch = epoch
        self.worktree = worktree
        self.feed = Feed()
        self.clients = 0
        self.used = time.monotonic()
        self.review = Review(lambda: agent.bench.files, self._judged)
        self._turn_began = 0  # the number of the first event of the turn that readers see running; 0 if none
        self._turn = len(agent.state.turns)  # the last turn that readers know of; the agent may be ahead of them
        self._fresh = True  # no turn yet: a client that joins also gets the warnings of the opening
        self._waiting: dict[str, events.ApprovalAsked] = {}
        self._usage: deque[events.UsageReported] = deque(_stored_usage(agent), maxlen=_MOST_USAGE)
        self._turn_usage = 0  # how many of them belong to the running turn
        self._unjudged = 0
        self._messages: deque[tuple[str, Submitted]] = deque(maxlen=_REMEMBERED)
        self._notes: list[str] = []
        self._buffers: EditorBuffers | None = None
        agent.state.watch_changes = lambda diff: self.review.changed(diff.path, diff.before, diff.after)
        self._events = agent.events()
        self._pump = asyncio.create_task(self._run())

    # ---- what clients call ----------------------------------------------------------------------------------

    def attached(self) -> Attached:
        """A snapshot of the session, for a client that joins."""
        running = self._turn_began >= self.feed.first and self._turn_began > 0
        known = self._turn - 1 if running else self._turn
        transcript = [entry for entry in self.agent.transcript() if entry.turn <= known]
        return Attached(
            session=self.id,
            epoch=self.epoch,
            seq=self._turn_began - 1 if running else 0 if self._fresh and self.feed.first == 1 else self.feed.last,
            status=self.agent.status(),
            transcript=transcript,
            queued=list(self.agent.state.queued),
            partial=self.agent.state.open_text if self._turn_began and not running else "",
            waiting=[] if running else list(self._waiting.values()),
            plan=list(self.agent.state.plan),
            usage=list(self._usage)[: len(self._usage) - self._turn_usage if running else None],
            worktree=str(self.worktree.folder) if self.worktree is not None else "",
            branch=self.worktree.branch if self.worktree is not None else "",
        )

    def info(self) -> SessionInfo:
        """One row of a list."""
        state = self.agent.state
        return SessionInfo(
            session=self.id,
            workspace=str(self.worktree.workspace if self.worktree is not None else self.agent.workspace),
            title=self._title(),
            model=self.agent.model,
            turns=len(state.turns),
            updated=time.time() - (time.monotonic() - self.used),
            live=True,
            running=self.agent.running,
            waiting=len(self._waiting),
            clients=self.clients,
            worktree=str(self.worktree.folder) if self.worktree is not None else "",
            unjudged=self._unjudged,
        )

    def submit(self, asked: Submit) -> Submitted:
        """Start, redirect or queue a prompt. Idempotent: a message sent again gets the same answer and does nothing."""
        if asked.message:
            for known, outcome in self._messages:
                if known == asked.message:
                    return outcome
        agent = self.agent
        running = agent.running
        if asked.expected_turn is not None and (not running or agent.state.turn.number != asked.expected_turn):
            raise FulgurError(f"turn {asked.expected_turn} is no longer running")
        if not running:
            self._tell_notes()
        if asked.how == "queue":
            agent.queue(asked.text)
        else:
            agent.submit(asked.text)
        outcome = Submitted(outcome="started" if not running else "queued" if asked.how == "queue" else "steered")
        if asked.message:
            self._messages.append((asked.message, outcome))
        self.used = time.monotonic()
        return outcome

    async def set_options(self, overrides: list[str]) -> None:
        """Set config keys; sandbox and approvals stay with the session, also when it is opened again."""
        await self.agent.set_options(overrides)
        if kept := [one for one in overrides if one.partition("=")[0] in _KEPT]:
            self.agent.state.log.append(_OPTIONS, overrides=kept)

    async def changes(self) -> list[FileChange]:
        """The changes that wait for a decision."""
        found = await asyncio.to_thread(self.review.pending)
        self._unjudged = len(found)
        return found

    async def judge(self, *, accept: bool, path: str | None, hunk: str | None) -> list[str]:
        """Accept or reject changes; before its next prompt the model is told what was reverted."""
        if accept:
            done = await asyncio.to_thread(self.review.accept, path, hunk)
        else:
            done = await asyncio.to_thread(self.review.reject, path, hunk)
            part = "a part of the change to" if hunk else "the changes to"
            self._notes += [f"[The person took back {part} {name}]" for name in done]
        if done:
            await self.changes()
            self.emit(events.Judged(paths=tuple(done), accepted=accept))
        return done

    async def merge(self) -> Merged:
        """Merge its worktree into the folder it was made from; both stay in any case. What is merged counts as
        accepted."""
        tree = self._quiet_worktree()
        done = await asyncio.to_thread(worktree_of.merge, tree, self._title())
        if not done.conflicts:
            await self.judge(accept=True, path=None, hunk=None)
        if done.conflicts:
            files = "1 file" if len(done.conflicts) == 1 else f"{len(done.conflicts)} files"
            text = f"Conflicts in {files}; {tree.workspace} is unchanged"
        else:
            text = f"Merged into {tree.workspace}" if done.commit else f"{tree.workspace} is already up to date"
        return Merged(merged=not done.conflicts, commit=done.commit, conflicts=list(done.conflicts), text=text)

    async def resolve(self) -> None:
        """Merge the folder's changes into the worktree, and let the agent resolve the conflicts."""
        done = await asyncio.to_thread(worktree_of.bring, self._quiet_worktree(), self._title())
        if done.conflicts:
            files = ", ".join(done.conflicts)
            self.agent.steer(
                f"The folder that this worktree was made from changed too, and both are merged now. Resolve the "
                f"conflicts in {files}: both sides stand between <<<<<<< and >>>>>>>. Keep what each change is for, "
                f"and remove the markers."
            )

    def _title(self) -> str:
        turns = self.agent.state.turns
        return turns[0].text[:200] if turns else ""

    def _quiet_worktree(self) -> Worktree:
        if self.worktree is None:
            raise FulgurError("this session has no worktree")
        if self.agent.running:
            raise FulgurError("a turn is running", hint="Stop it, or wait until it ends.")
        return self.worktree

    def use_buffers(self, buffers: EditorBuffers | None) -> None:
        """Read and write files through an editor that has them open; the last editor that offers it wins."""
        self._buffers = self.agent.bench.files.buffers = buffers

    def emit(self, event: events.AgentEvent) -> None:
        """Number an event and pass it to every reader."""
        match event:
            case events.TurnStarted():
                self._turn_began = self.feed.last + 1
                self._turn = event.turn
                self._fresh = False
                self._turn_usage = 0
            case events.UsageReported():
                self._usage.append(event)
                self._turn_usage += 1
                self.agent.state.log.append(_USAGE, usage=event)
            case events.ApprovalAsked():
                self._waiting[event.approval_id] = event
            case events.ApprovalSettled():
                self._waiting.pop(event.approval_id, None)
            case events.ModelChosen():  # the settings changed, and maybe the bench with them
                self.agent.bench.files.buffers = self._buffers
        self.feed.append(events.encode(event))
        if isinstance(event, events.TURN_ENDS):
            self._turn_began = 0
            self._waiting.clear()

    async def close(self) -> None:
        """Stop the turn and release everything; the session stays on disk."""
        await self.agent.close()
        await self._pump
        self.feed.close()

    # ---- inside ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        async for event in self._events:
            self.used = time.monotonic()
            if isinstance(event, events.TURN_ENDS):
                await self._turn_over()
            self.emit(event)

    async def _turn_over(self) -> None:
        """Add what commands changed, which only the snapshots around the turn show."""
        turns = self.agent.state.turns
        if turns and turns[-1].before and turns[-1].after:
            before, after = turns[-1].before, turns[-1].after
            await asyncio.to_thread(self.review.turn_of, before, after)
            await self.changes()

    def _judged(self, path: str, base: str | None) -> None:
        self.agent.state.log.append(JUDGED, path=path, base=base)

    def _tell_notes(self) -> None:
        if self._notes and self.agent.state.turns:
            self.agent.state.add_items([message("user", note) for note in self._notes])
        self._notes = []


async def open_session(agent: Agent, epoch: str, worktree: Worktree | None) -> HostedSession:
    """Host an agent; load what a stored session changed first."""
    session = HostedSession(agent, epoch, worktree)
    if agent.state.turns:
        await asyncio.to_thread(session.review.load, agent.state.log)
        await session.changes()
    return session


def with_own_options(settings: Settings, path: Path) -> Settings:
    """Return the settings with the options that the session in this file chose."""
    kept = [one["overrides"] for one in read_records(path, damaged="stop") if one["type"] == _OPTIONS]
    chosen: list[str] = kept[-1] if kept else []
    return settings if any(_NEVER_KEPT in one for one in chosen) else settings.with_changes(overrides=chosen)


def _stored_usage(agent: Agent) -> list[events.UsageReported]:
    """The numbers of a stored session's answers, oldest first."""
    if not agent.state.turns:
        return []
    found = [record[_USAGE] for record in agent.state.log.records() if record["type"] == _USAGE]
    return [msgspec.convert(usage, events.UsageReported) for usage in found]


def stored_info(summary: SessionSummary, parent: SessionSummary | None = None) -> SessionInfo:
    """Describe a session that exists only on disk; a subagent's title is its member name."""
    return SessionInfo(
        session=summary.session_id,
        workspace=summary.workspace,
        title=summary.first_prompt if parent is None else parent.members[summary.session_id],
        model=summary.model,
        turns=summary.turns,
        updated=summary.updated,
        parent=parent.session_id if parent is not None else "",
    )
