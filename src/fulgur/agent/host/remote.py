"""A session of the host with the interface of `Agent`, so that the terminal UI shows it like a local one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fulgur.agent.broadcast import Broadcast
from fulgur.agent.session import log as stored
from fulgur.client.host import Followed, HostClient
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol import agent as events
from fulgur.protocol.agent import AgentEvent, Decision, Warned
from fulgur.protocol.host import Attached
from fulgur.protocol.session import ModelOffer, SessionSummary, Status, TranscriptEntry


class RemoteAgent:
    """Several of these, here and elsewhere, may show and steer the same session."""

    def __init__(self, settings: Settings, client: HostClient, attached: Attached) -> None:
        self.settings = settings
        self._client = client
        self._broadcast = Broadcast()
        self._sending: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._listening: asyncio.Task[None] | None = None
        self.members: list[str] = []
        self._take(attached)

    @classmethod
    async def open(cls, settings: Settings, session: str | None) -> RemoteAgent:
        """Attach to a session (id, prefix of an id, or "last"); without one, to a new session."""
        client = await HostClient(settings.home).open()
        try:
            attached, following = await client.attach("session.open", **_wishes(settings), session=session)
        except BaseException:
            await client.close()
            raise
        agent = cls(settings, client, attached)
        agent._listening = asyncio.create_task(agent._listen(following))
        agent._announce(attached)
        return agent

    def _take(self, attached: Attached) -> None:
        self._session = attached.session
        self._status = attached.status
        self._transcript = list(attached.transcript)
        if attached.partial:
            entry = TranscriptEntry(turn=attached.status.turns, kind="assistant", text=attached.partial)
            self._transcript.append(entry)
        self.running = attached.status.running

    def _announce(self, attached: Attached) -> None:
        status = attached.status
        turns = len({entry.turn for entry in self._transcript if entry.turn})
        self._broadcast.send(
            events.SessionStarted(
                session_id=self._session, path=status.session_path, model=status.model, resumed_turns=turns
            )
        )
        if attached.queued:
            self._broadcast.send(events.QueueChanged(prompts=tuple(attached.queued)))
        if attached.plan:
            self._broadcast.send(events.PlanChanged(turn=turns, steps=tuple(attached.plan)))
        for asked in attached.waiting:
            self._broadcast.send(asked)

    async def _listen(self, following: AsyncIterator[Followed]) -> None:
        async for event in following:
            if isinstance(event, Attached):
                self._take(event)
                self._broadcast.send(Warned(message="some events were missed; this is the session as it is now"))
                self._announce(event)
                continue
            if isinstance(event, events.SessionStarted):
                continue  # it was announced with the transcript
            if isinstance(event, events.MemberStarted):
                self.members.append(event.member)
            elif isinstance(event, events.MemberFinished) and event.member in self.members:
                self.members.remove(event.member)
            if isinstance(event, events.TurnStarted):
                self.running = True
            elif isinstance(event, events.TURN_ENDS):
                self.running = False
                self._later(self._refresh())
            self._broadcast.send(event)
        self.running = False
        self._broadcast.send(Warned(message="the session was closed elsewhere"))

    async def _refresh(self) -> None:
        self._status = await self._client.call("session.status", Status, session=self._session)

    # ---- the interface of Agent -----------------------------------------------------------------------------

    def events(self) -> AsyncIterator[AgentEvent]:
        return self._broadcast.subscribe()

    def submit(self, text: str) -> None:
        self.steer(text)

    def steer(self, text: str) -> None:
        self._later(self._client.submit(self._session, text))

    def queue(self, text: str) -> None:
        self._later(self._client.submit(self._session, text, "queue"))

    async def withdraw(self, text: str) -> bool:
        return await self._client.call("turn.withdraw", bool, session=self._session, text=text)

    def stop(self) -> None:
        self._later(self._client.tell("turn.stop", session=self._session))

    def approve(self, approval_id: str, decision: Decision, rejected: tuple[int, ...] = ()) -> None:
        answer = {"approval": approval_id, "decision": decision, "rejected": rejected}
        self._later(self._client.tell("approval.answer", session=self._session, **answer))

    async def undo(self) -> None:
        await self._client.tell("session.undo", session=self._session)

    async def compact(self) -> None:
        await self._client.tell("session.compact", session=self._session)

    async def set_model(self, model: str, *, provider: str | None = None) -> None:
        params = {"session": self._session, "model": model, "provider": provider}
        self._status = await self._client.call("session.model", Status, **params)

    async def set_profile(self, name: str) -> None:
        raise FulgurError(
            "the profile of a shared session cannot be changed", hint="`fulgur attach --profile` opens one."
        )

    async def set_options(self, overrides: list[str]) -> None:
        self._status = await self._client.call("session.set", Status, session=self._session, overrides=overrides)

    def set_fast(self, on: bool) -> None:
        self._later(self.set_options([f"service_tier={'fast' if on else 'default'}"]))

    async def run_own(self, command: str) -> None:
        await self._client.tell("session.shell", session=self._session, command=command)

    async def job(self, name: str, *, stop: bool = False) -> str:
        return await self._client.call("session.job", str, session=self._session, job=name, stop=stop)

    async def rewind(self, turn: int) -> str:
        raise FulgurError(
            "a shared session cannot be rewound", hint="Copy it with /fork, then open the copy with `fulgur --resume`."
        )

    async def models(self) -> list[str]:
        return await self._client.call("session.models", list[str], session=self._session)

    async def offers(self) -> list[ModelOffer]:
        return await self._client.call("session.offers", list[ModelOffer], session=self._session)

    def overrule(self) -> str:
        async def ask() -> None:
            if told := await self._client.call("session.overrule", str, session=self._session):
                self._broadcast.send(Warned(message=told))

        self._later(ask())
        return ""

    def tell(self, member: str, text: str) -> None:
        self._later(self._client.tell("session.tell", session=self._session, member=member, text=text))

    async def program(self, line: str) -> None:
        await self._client.tell("session.program", session=self._session, text=line)

    async def resume(self, name: str) -> None:
        await self._switch(session=name)

    async def new(self) -> str:
        await self._switch()
        return self._session

    async def fork(self) -> str:
        await self._switch(fork=self._session)
        return self._session

    async def _switch(self, **which: str) -> None:
        attached, following = await self._client.attach("session.open", **_wishes(self.settings), **which)
        self._end_listening()
        await self._client.tell("session.detach", session=self._session)
        self._take(attached)
        self._listening = asyncio.create_task(self._listen(following))
        self._announce(attached)

    def sessions(self) -> list[SessionSummary]:
        return stored.summaries(self.settings.home, self.settings.workspace)

    def transcript(self) -> list[TranscriptEntry]:
        return list(self._transcript)

    def diff(self) -> str:
        """Runs in a thread, as `Agent.diff` does."""
        work = self._client.call("session.diff", str, session=self._session)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def status(self) -> Status:
        return self._status

    async def close(self) -> None:
        """Disconnect; the session goes on in the host."""
        await asyncio.gather(*self._sending, return_exceptions=True)
        self._end_listening()
        await self._client.close()
        self._broadcast.close()

    def _end_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    def _later(self, work: Any) -> None:
        """Send in the background, so that no key waits; errors are shown."""

        async def sent() -> None:
            try:
                await work
            except FulgurError as error:
                self._broadcast.send(Warned(message=error.message, hint=error.hint or ""))

        task = asyncio.get_running_loop().create_task(sent())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def _wishes(settings: Settings) -> dict[str, Any]:
    """The folder and flags of this terminal, for a session opened from it."""
    request = settings.request
    given = {name: request.get(name) for name in ("profile", "model")}
    return {"workspace": str(settings.workspace), "overrides": request.get("overrides") or [], **given}
