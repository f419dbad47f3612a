"""One client of the host: its requests, and the events of the sessions it is attached to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from fulgur import __version__
from fulgur.agent.host.buffers import EditorBuffers
from fulgur.agent.host.host import Host
from fulgur.agent.host.session import HostedSession
from fulgur.client.rpc import Methods, Peer, Send, dispatch
from fulgur.protocol import host as wire
from fulgur.protocol import rpc
from fulgur.protocol.session import ModelOffer, TranscriptEntry

MOST_ATTACHED = 64
_BOARD_SECONDS = 0.25
_EVENT = b'{"jsonrpc":"2.0","method":"event","params":{"session":%s,"seq":%d,"event":%s}}'
_EVENTS = b'{"jsonrpc":"2.0","method":"events","params":{"session":%s,"seq":%d,"events":[%s]}}'


class HostLink:
    """`peer.run` serves the client until it disconnects; then call `close`."""

    def __init__(self, host: Host, send: Send) -> None:
        self._host = host
        self._send = send
        self._attached: dict[str, asyncio.Task[None]] = {}
        self._board: asyncio.Task[None] | None = None
        self.peer = Peer(send, self._handle)
        self._methods: Methods = {
            "host.info": (wire.Listing, self._info),
            "session.list": (wire.Listing, self._list),
            "session.read": (wire.Named, self._read),
            "session.open": (wire.Open, self._open),
            "session.attach": (wire.Attach, self._attach),
            "session.detach": (wire.Named, self._detach),
            "session.close": (wire.Close, self._close),
            "session.delete": (wire.Named, self._delete),
            "session.status": (wire.Named, self._status),
            "session.models": (wire.Named, self._models),
            "session.offers": (wire.Named, self._offers),
            "session.overrule": (wire.Named, self._overrule),
            "session.tell": (wire.Tell, self._tell),
            "session.program": (wire.Program, self._program),
            "session.model": (wire.SetModel, self._set_model),
            "session.set": (wire.SetOption, self._set),
            "session.undo": (wire.Named, self._undo),
            "session.compact": (wire.Named, self._compact),
            "session.shell": (wire.OwnCommand, self._own_command),
            "session.job": (wire.Job, self._job),
            "session.diff": (wire.Named, self._diff),
            "session.buffers": (wire.OfferBuffers, self._offer_buffers),
            "turn.submit": (wire.Submit, self._submit),
            "turn.withdraw": (wire.Withdraw, self._withdraw),
            "turn.stop": (wire.Named, self._stop),
            "approval.answer": (wire.Answer, self._answer),
            "changes.list": (wire.Named, self._changes),
            "changes.accept": (wire.Choose, self._accept),
            "changes.reject": (wire.Choose, self._reject),
            "worktree.merge": (wire.Named, self._merge),
            "worktree.resolve": (wire.Named, self._resolve),
            "board.follow": (wire.Listing, self._follow_board),
        }

    async def close(self) -> None:
        """Clean up after the client has gone; its sessions go on."""
        tasks = [*self._attached.values(), *([self._board] if self._board is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(self, method: str, params: msgspec.Raw) -> Any:
        return await dispatch(self._methods, method, params)

    # ---- sessions -------------------------------------------------------------------------------------------

    async def _info(self, _: wire.Listing) -> wire.HostInfo:
        host = self._host
        clients = sum(session.clients for session in host.sessions.values())
        return wire.HostInfo(version=__version__, epoch=host.epoch, sessions=len(host.sessions), clients=clients)

    async def _list(self, asked: wire.Listing) -> list[wire.SessionInfo]:
        return await asyncio.to_thread(self._host.list, asked.workspace)

    async def _read(self, asked: wire.Named) -> Sequence[TranscriptEntry]:
        return await asyncio.to_thread(self._host.read, asked.session)

    async def _open(self, asked: wire.Open) -> wire.Attached:
        session = await self._host.open(asked)
        return self._follow(session, 0, "")

    async def _attach(self, asked: wire.Attach) -> wire.Attached:
        session = await self._host.get(asked.session)
        return self._follow(session, asked.after, asked.epoch, asked.frame_ms / 1000)

    def _follow(self, session: HostedSession, after: int, epoch: str, pause: float = 0.0) -> wire.Attached:
        """Send a session's events from now on; a client that reconnects gets those it missed, if they are still
        kept."""
        if len(self._attached) >= MOST_ATTACHED and session.id not in self._attached:
            raise rpc.RpcError(rpc.FAILED, f"already attached to {MOST_ATTACHED} sessions")
        if (old := self._attached.pop(session.id, None)) is not None:
            old.cancel()
        snapshot = session.attached()
        returns = epoch == session.epoch and session.feed.first - 1 <= after <= session.feed.last
        if returns:
            snapshot = msgspec.structs.replace(snapshot, seq=after, transcript=[])
        task = asyncio.create_task(self._events(session, snapshot.seq, pause))
        self._attached[session.id] = task
        return snapshot

    async def _events(self, session: HostedSession, number: int, pause: float) -> None:
        """Send events at the client's pace; with a pause, those that came meanwhile go into one message."""
        session.clients += 1
        name, feed = msgspec.json.encode(session.id), session.feed
        try:
            while await feed.beyond(number):
                if number + 1 < feed.first:
                    snapshot = session.attached()
                    await self._send(rpc.notification("resync", snapshot))
                    number = snapshot.seq
                elif pause:
                    many = b",".join(feed.since(number))
                    number, first = feed.last, number + 1
                    await self._send(_EVENTS % (name, first, many))
                    await asyncio.sleep(pause)
                else:
                    number += 1
                    await self._send(_EVENT % (name, number, feed.get(number)))
            await self._send(rpc.notification("closed", {"session": session.id}))
        except (ConnectionError, OSError):
            return
        finally:
            session.clients -= 1

    async def _follow_board(self, _: wire.Listing) -> None:
        if self._board is None:
            self._board = asyncio.create_task(self._boards())

    async def _boards(self) -> None:
        """Poll: looking is cheap, and a client needs no more than it can show."""
        told: list[wire.SessionInfo] | None = None
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                now = [session.info() for session in self._host.sessions.values()]
                seen = [msgspec.structs.replace(info, updated=info.updated // 15) for info in now]
                if seen != told:
                    await self._send(rpc.notification("board", wire.Board(sessions=now)))
                    told = seen
                await asyncio.sleep(_BOARD_SECONDS)

    async def _detach(self, asked: wire.Named) -> None:
        task = self._attached.pop(asked.session, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _close(self, asked: wire.Close) -> None:
        await self._host.close(asked.session, discard=asked.discard)

    async def _delete(self, asked: wire.Named) -> None:
        await self._host.delete(asked.session)

    # ---- one session ----------------------------------------------------------------------------------------

    async def _status(self, asked: wire.Named) -> Any:
        return (await self._host.get(asked.session)).agent.status()

    async def _models(self, asked: wire.Named) -> list[str]:
        return await (await self._host.get(asked.session)).agent.models()

    async def _offers(self, asked: wire.Named) -> list[ModelOffer]:
        return await (await self._host.get(asked.session)).agent.offers()

    async def _overrule(self, asked: wire.Named) -> str:
        return (await self._host.get(asked.session)).agent.overrule()

    async def _tell(self, asked: wire.Tell) -> None:
        (await self._host.get(asked.session)).agent.tell(asked.member, asked.text)

    async def _program(self, asked: wire.Program) -> None:
        await (await self._host.get(asked.session)).agent.program(asked.text)

    async def _set_model(self, asked: wire.SetModel) -> Any:
        agent = (await self._host.get(asked.session)).agent
        await agent.set_model(asked.model, provider=asked.provider)
        return agent.status()

    async def _set(self, asked: wire.SetOption) -> Any:
        session = await self._host.get(asked.session)
        await session.set_options(asked.overrides)
        return session.agent.status()

    async def _undo(self, asked: wire.Named) -> None:
        await (await self._host.get(asked.session)).agent.undo()

    async def _compact(self, asked: wire.Named) -> None:
        await (await self._host.get(asked.session)).agent.compact()

    async def _job(self, asked: wire.Job) -> str:
        return await (await self._host.get(asked.session)).agent.job(asked.job, stop=asked.stop)

    async def _own_command(self, asked: wire.OwnCommand) -> None:
        await (await self._host.get(asked.session)).agent.run_own(asked.command)

    async def _diff(self, asked: wire.Named) -> str:
        return await asyncio.to_thread((await self._host.get(asked.session)).agent.diff)

    async def _offer_buffers(self, asked: wire.OfferBuffers) -> None:
        session = await self._host.get(asked.session)
        session.use_buffers(EditorBuffers(self.peer, session.id, reads=asked.reads, writes=asked.writes))

    async def _submit(self, asked: wire.Submit) -> wire.Submitted:
        return (await self._host.get(asked.session)).submit(asked)

    async def _withdraw(self, asked: wire.Withdraw) -> bool:
        return await (await self._host.get(asked.session)).agent.withdraw(asked.text)

    async def _stop(self, asked: wire.Named) -> None:
        (await self._host.get(asked.session)).agent.stop()

    async def _answer(self, asked: wire.Answer) -> None:
        (await self._host.get(asked.session)).agent.approve(asked.approval, asked.decision, asked.rejected)

    async def _changes(self, asked: wire.Named) -> list[wire.FileChange]:
        return await (await self._host.get(asked.session)).changes()

    async def _accept(self, asked: wire.Choose) -> list[str]:
        return await self._judge(asked, accept=True)

    async def _reject(self, asked: wire.Choose) -> list[str]:
        return await self._judge(asked, accept=False)

    async def _judge(self, asked: wire.Choose, *, accept: bool) -> list[str]:
        session = await self._host.get(asked.session)
        return await session.judge(accept=accept, path=asked.path, hunk=asked.hunk)

    async def _merge(self, asked: wire.Named) -> wire.Merged:
        return await (await self._host.get(asked.session)).merge()

    async def _resolve(self, asked: wire.Named) -> None:
        await (await self._host.get(asked.session)).resolve()
