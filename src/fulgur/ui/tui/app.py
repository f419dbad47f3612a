"""The screen of one session: keys become calls of the agent, and its events come back as rows."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs
from prompt_toolkit.enums import EditingMode

from fulgur import __version__
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol import agent as events
from fulgur.protocol.session import ModelOffer, SessionSummary
from fulgur.ui.tui import blocks, commands, welcome
from fulgur.ui.tui.approvals import Approvals
from fulgur.ui.tui.blocks import REWRITE
from fulgur.ui.tui.complete import Completer
from fulgur.ui.tui.crash import CapturedStderr
from fulgur.ui.tui.draft import Draft
from fulgur.ui.tui.files import FileIndex
from fulgur.ui.tui.keys import key_bindings
from fulgur.ui.tui.live import LiveArea, style
from fulgur.ui.tui.opening import Opener, open_agent
from fulgur.ui.tui.outbox import Kind, Outbox
from fulgur.ui.tui.prompts import own_commands
from fulgur.ui.tui.screen import Screen
from fulgur.ui.tui.status import Meter
from fulgur.ui.tui.surface import TERMINAL_GONE, Surface
from fulgur.ui.tui.theme import paint
from fulgur.ui.tui.wrap import shorten

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent
    from fulgur.config.named import NamedText

_TWICE_SECONDS = 2.0  # between the two presses of Ctrl-C that quit
_SPIN_SECONDS = 0.1
_LONG_TURN_SECONDS = 10.0  # longer turns notify, since the person may be looking elsewhere
_TAKEN_SECONDS = 0.5  # after a turn: by then, a prompt sent in its last moment has its own turn


class Tui(Surface):
    """State and actions; the live area draws it, the key bindings call it."""

    def __init__(
        self, settings: Settings, *, session: str | None = None, prompt: str = "", opener: Opener = open_agent
    ) -> None:
        self.settings = settings
        self._opener = opener
        self._session = session
        self._first_prompt = prompt
        self.agent: Agent | None = None
        self.opening = False
        self.running = False
        self.outbox = Outbox(self._run_command)
        self.offers: list[ModelOffer] = []  # for the menu of /model
        self.compacting: events.Compacting | None = None
        self.checking = ""  # the running check of an edit
        self.place: events.Waiting | None = None  # in the server's queue
        self.meter = Meter()
        self.meter.ask_for(settings.model or "")
        self.replays = True  # show a session from its start when it is opened
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.own_commands: dict[str, NamedText] = {}
        self.expanded: dict[str, str] = {}  # prompts of commands such as /review -> what was typed
        self._wrong: FulgurError | None = None  # with one of the person's own files; shown once the screen is up
        try:
            self.own_commands = own_commands(settings)
        except FulgurError as error:
            self._wrong = error
        self._sessions: list[SessionSummary] | None = None
        completer = Completer(
            FileIndex(settings.workspace),
            commands.command_choices(self.own_commands),
            lambda name: commands.argument_choices(self, name),
        )
        self.draft = Draft(settings.home / "history", completer)
        self.approvals = Approvals(self.draft)
        self._begun = 0  # turns begun
        self._own_words = False  # this turn's messages come from the program, not from a model
        self._prompt = ""  # of the current or last turn
        self._last_interrupt = -10.0
        self._one_command = asyncio.Lock()
        self._hides_reasoning = settings.flag("hide_agent_reasoning")
        screen = Screen(
            key_bindings=key_bindings(self),
            style=style(),
            include_default_pygments_style=False,
            editing_mode=EditingMode.VI if settings.flag("tui.vim") else EditingMode.EMACS,
        )
        super().__init__(screen, settings.home / "crash.log")
        screen.layout = LiveArea(self).layout()

    # ---- running ----------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run until the person leaves; return the exit code."""
        try:
            with redirect_stderr(CapturedStderr(lambda line: self.complain(line, "", warning=True))):
                code = await self.screen.run_async(pre_run=self._start, set_exception_handler=False)
        except (EOFError, OSError):
            code = TERMINAL_GONE
        finally:
            self.approvals.clear()  # brings back a draft that a question set aside
            self.draft.save()
        self.transcript.close()
        if self.agent is not None:
            session = self.agent.status()
            with suppress(FulgurError, OSError):
                await self.agent.close()
            if ended := [job.command for job in self.transcript.jobs if job.running]:
                self.transcript.add(
                    "end", blocks.note(f"ended these background commands: {', '.join(ended)}", self.screen.width)
                )
            if session.turns:
                self.transcript.add("end", blocks.note(f"fulgur --resume {session.session_id}", self.screen.width))
        if code != TERMINAL_GONE:
            self.screen.flush_rows()
        return code

    def _start(self) -> None:
        folder = str(self.settings.workspace).replace(str(Path.home()), "~", 1)
        banner = shorten(f"{__version__}  {folder}", self.screen.width - 7)
        self.transcript.add("banner", [paint([("user", "fulgur "), ("dim", banner)])])
        self.say("/help shows commands and keys, @ names a file")
        self.screen.flush_rows()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.on_loop_error)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.quit, 128 + number)
        self.screen.create_background_task(self._spin())
        if self._wrong is not None:
            self.complain(self._wrong.message, self._wrong.hint or "", warning=True)
        if self._first_prompt:
            self._send("submit", self._first_prompt)
        self.open()

    async def _spin(self) -> None:
        while True:
            await asyncio.sleep(_SPIN_SECONDS)
            busy = self.opening or self.outbox.pending or self.compacting or self.transcript.tools
            if busy or (self.running and self.approvals.current is None):
                self.screen.request_frame()

    @property
    def mode(self) -> str:
        """What the agent may do, for the status line."""
        settings = self.agent.settings if self.agent is not None else self.settings
        return f"{settings.sandbox_mode}, {settings.approval_policy}"

    # ---- the agent --------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the agent in the background; what is typed meanwhile waits for it."""
        if not self.opening:
            self.opening = True
            self.screen.create_background_task(self._open())

    async def _open(self) -> None:
        try:
            agent = await self._opener(self.settings, self._session)
        except Exception as error:
            self.opening = False
            if isinstance(error, FulgurError):
                self.complain(error.message, error.hint or "")
                self.say("/model lists other models")
            else:
                self.crashed(error)
            self._give_back_pending()
            return
        self.opening = False
        self.agent = agent
        self.screen.create_background_task(self._listen(agent.events()))
        self.asks_for(agent)
        welcome.greet(self, agent)
        self.outbox.send_early(agent)
        self.screen.create_background_task(self._look_for_models(agent))

    async def _look_for_models(self, agent: Agent) -> None:
        """After the first screen, list in one row which other providers could answer."""
        with suppress(FulgurError):
            self.offers = await agent.offers()
        chosen = agent.settings.provider.id
        others = dict.fromkeys(offer.provider for offer in self.offers if offer.provider not in (chosen, "local"))
        if others:
            self.say(f"also here: {', '.join(others)} (/model lists their models)")

    def asks_for(self, agent: Agent) -> None:
        """Update the status line for the model that answers next."""
        status = agent.status()
        self.meter.ask_for(status.model, status.context_limit)
        self.meter.context(status.context_used, status.context_limit)

    async def _listen(self, listening: AsyncIterator[events.AgentEvent]) -> None:
        async for event in listening:
            try:
                self.on_event(event)
            except Exception as error:  # a bug in drawing one event must not end the session
                self.crashed(error)
        self.running = False
        self.screen.request_frame()

    def on_event(self, event: events.AgentEvent) -> None:
        """Handle one event of the agent."""
        if isinstance(event, events.TurnStarted) and event.text in self.expanded:
            event = structs.replace(event, text=self.expanded[event.text])
        match event:
            case events.MessageDelta() | events.ThinkingDelta():
                if not self._own_words:
                    self.meter.delta(event.text)
            case events.ToolOutput():
                tool = self.transcript.tools.get(event.call_id)
                if tool is not None and tool.name == REWRITE:
                    self.meter.delta(event.text)
            case events.SessionStarted():
                self.outbox.queued = ()
                replays, self.replays = self.replays, True
                if event.resumed_turns and replays and self.agent is not None:
                    self.transcript.replay(self.agent.transcript())
                    turns = f"{event.resumed_turns} turn{'s' * (event.resumed_turns > 1)}"
                    self.say(f"resumed {event.session_id}, {turns}")
                self._count_context()
            case events.GuardStarted():
                self.checking = event.check
            case events.GuardReported():
                self.checking = ""
            case events.TurnStarted():
                self.running = True
                self._begun += 1
                self._prompt = event.text
                # On the edit path the model writes a rewrite, in a program's turn nothing: the messages are ours.
                self._own_words = event.way == "edit" or not event.reason
                self.meter.start_turn(copies=event.way == "edit")
                self.outbox.taken(event.text)
            case events.Routed():
                self.meter.ask_for(event.model)
            case events.TurnSteered():
                self.outbox.taken(event.text)
            case events.QueueChanged():
                self.outbox.are_queued(event.prompts)
            case events.UsageReported():
                self.meter.report(event)
            case events.Compacting():
                self.compacting = event
            case events.Waiting():
                self.place = event if event.position else None
            case events.Compacted():
                self.compacting = None
                self._count_context()
            case events.TurnFailed() if not event.text:
                self._give_back_failed()
            case events.ToolFinished():
                self.meter.next_answer()
            case events.ApprovalAsked():
                self.approvals.ask(event)
                self._arm()
                self._notify("fulgur is waiting for your answer")
            case events.ApprovalSettled():
                self.approvals.settle(event.approval_id)
                self._arm()
        if not (isinstance(event, events.ThinkingDelta) and self._hides_reasoning):
            self.transcript.on_event(event)
        if isinstance(event, events.TURN_ENDS):
            self._turn_over()
        self.screen.request_frame()

    def _notify(self, text: str) -> None:
        self.screen.notify(self.settings.text("tui.notify") or "off", text)

    def stored_sessions(self) -> list[SessionSummary]:
        """The sessions for the menu of /resume."""
        if self._sessions is None and self.agent is not None:
            self._sessions = [summary for summary in self.agent.sessions() if summary.turns]
        return self._sessions or []

    def _count_context(self) -> None:
        if self.agent is not None:
            status = self.agent.status()
            self.meter.context(status.context_used, status.context_limit)

    def _give_back_failed(self) -> None:
        """Put back the prompt of a turn that failed before it said anything: Enter sends it again."""
        if self._prompt and not self.draft.text and self.approvals.current is None:
            self.draft.give(self._prompt)

    def _turn_over(self) -> None:
        self.running = False
        self.compacting = self.place = None
        self.checking = ""
        self._count_context()
        self.approvals.clear()
        seconds, last = self.meter.end_turn(), self.meter.last
        if seconds is not None and seconds >= _LONG_TURN_SECONDS:
            self._notify("fulgur is done")
        if self.outbox.pending and self.screen.loop is not None:
            self.screen.loop.call_later(_TAKEN_SECONDS, self._give_back_pending)
        if last is not None and seconds is not None:
            self.transcript.add("usage", blocks.note(self.meter.summary(seconds), self.screen.width))

    def _give_back_pending(self) -> None:
        """Put back what was sent but not taken up, so that nothing typed is lost."""
        if self.opening or (self.agent is not None and self.agent.running):
            return
        if texts := self.outbox.take_back():
            self.draft.put_back("\n".join(texts))
            self.screen.request_frame()

    # ---- what keys do -----------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Send the draft: as a command, the reason of a refusal, a new prompt or a steer."""
        if self.approvals.refusing:
            self._deny(self.draft.take().strip())
        elif not self.draft.text.strip() and self.outbox.queued and self.agent is not None and not self.running:
            self.agent.submit("")
        elif text := self.draft.send():
            if text.startswith(("/", "!")) and "\n" not in text:
                self._send("command", text)
            elif self.approvals.armed:
                self._deny(text)
            else:
                self._send("steer" if self.running else "submit", text)

    def queue(self) -> None:
        """Queue the draft for after the turn."""
        if not self.draft.text.strip():
            return
        if not self.running:
            self.tell("nothing is running: Enter sends it")
            return
        self._send("queue", self.draft.send())

    @property
    def takes_back(self) -> bool:
        """Whether Up takes back a queued prompt instead of showing the history."""
        return bool(self.outbox.queued and self.agent and not self.draft.text and self.approvals.current is None)

    def take_back(self) -> None:
        """Put the prompt that was queued last back into the input."""
        agent, text = self.agent, self.outbox.queued[-1]
        assert agent is not None

        async def ask() -> None:
            if await agent.withdraw(text):
                self.draft.put_back(self.expanded.get(text, text))
            else:
                self.tell("it has already started")

        self.in_background(ask())

    def stop(self) -> None:
        """Stop the turn; keep what was said."""
        asked = self.approvals.current
        if self.approvals.refusing or (self.approvals.choosing and self.approvals.armed):
            self.approvals.refuse(False)
        elif self.agent is not None and asked is not None and self.approvals.armed:
            self.agent.approve(asked.approval_id, "stop")
        elif self.agent is not None and self.agent.running:
            self.agent.stop()

    def overrule(self) -> None:
        """Ctrl-T: switch to the other model of `model = "auto"`."""
        if self.agent is None:
            return
        try:
            if told := self.agent.overrule():
                self.tell(told)
        except FulgurError as error:
            self.tell(error.message)

    def interrupt(self) -> None:
        """Ctrl-C: once stops, or clears the draft (which stays in the history); twice in a row quits, but never with a
        draft."""
        again = time.monotonic() - self._last_interrupt < _TWICE_SECONDS
        again &= self.draft.last_key < self._last_interrupt  # typing in between starts over
        if self.agent is not None and self.agent.running and not again:
            self.stop()
        elif self.draft.text.strip():
            self.draft.send()
        elif again:
            self.quit(130)
            return
        self._last_interrupt = time.monotonic()  # after emptying the draft, which counts as a key
        self.tell("Ctrl-C again to leave", _TWICE_SECONDS)

    def decide(self, decision: events.Decision) -> None:
        """Answer the open question."""
        asked = self.approvals.current
        if asked is None or self.agent is None:
            return
        if decision == "always" and not asked.prefix:
            self.tell("this cannot be allowed for good: y allows it once")
            return
        self.agent.approve(asked.approval_id, decision)

    def judge_hunk(self, take: bool, *, rest: bool) -> None:
        """Take or leave one hunk; after the last one, send the answer, or ask for a reason if any was left out."""
        choice = self.approvals.choice
        if choice is None:
            return
        choice.judge(take, rest=rest)
        if choice.done and choice.rejected:
            self.approvals.refuse()
        elif choice.done:
            self.decide("once")

    def _deny(self, reason: str) -> None:
        asked, choice = self.approvals.current, self.approvals.choice
        if self.agent is not None and asked is not None and choice is not None and choice.done:
            self.agent.approve(asked.approval_id, "once", tuple(choice.rejected))
        else:
            self.decide("deny")
        if reason:
            self._send("steer", reason)

    def _send(self, kind: Kind, text: str) -> None:
        if self.agent is None and not self.opening and kind == "command" and commands.needs_nobody(text):
            self.in_background(commands.run_without_agent(self, text))
            return
        try:
            self.outbox.send(self.agent, kind, text)
        except FulgurError as error:
            self.complain(error.message, error.hint or "")
            self._give_back_pending()
        if self.agent is None:
            self.open()
        self.notice = ""  # it was about what came before
        self.screen.request_frame()

    def _run_command(self, agent: Agent, text: str) -> None:
        async def run() -> None:
            async with self._one_command:
                if not commands.is_turn(self, text):
                    self.transcript.add("prompt", blocks.prompt_rows(text, self.screen.width))
                await commands.run_line(self, agent, text)
                self._sessions = None

        self.screen.create_background_task(run())

    @property
    def takes_variant(self) -> bool:
        """Whether a digit takes a variant instead of being text."""
        return self.transcript.variants is not None and not self.running and not self.draft.text

    def take_variant(self, number: int) -> None:
        """Take a variant by its digit; 0 takes none."""
        told, self.transcript.variants = self.transcript.variants, None
        if told is not None and number in {variant.number for variant in told.variants} and self.agent is not None:
            self.in_background(self.agent.program(f"/take {number}"))
        self.screen.request_frame()

    def in_background(self, work: Coroutine[Any, Any, object], line: str = "") -> None:
        """Run what a command starts without holding up other commands. Errors are shown, below the typed `line` if no
        turn has shown it."""
        before = self._begun

        async def run() -> None:
            try:
                await work
            except FulgurError as error:
                if line and self._begun == before:
                    self.transcript.add("prompt", blocks.prompt_rows(line, self.screen.width))
                self.complain(error.message, error.hint or "")

        self.screen.create_background_task(run())

    def accept_choice(self, *, and_run: bool = False) -> bool:
        """Accept the chosen row of the menu; True if the draft is now a whole command that may run."""
        command = commands.COMMANDS.get(self.draft.menu.chosen.text) if self.draft.menu else None
        return self.draft.accept(bool(command and command.argument), and_run=and_run)

    def _arm(self) -> None:
        wait = self.approvals.arm()
        if wait is not None and self.screen.loop is not None:
            self.screen.loop.call_later(wait, self._arm)
        self.screen.request_frame()
