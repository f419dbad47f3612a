"""A session in memory: its history, turns and queue, always exactly what its file says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from fulgur.agent.session.history import STOPPED_OUTPUT, History, Item, call_output, call_title, item_text, message
from fulgur.agent.session.log import Record, SessionLog, damage
from fulgur.protocol.agent import MemberFinished, PlanStep
from fulgur.protocol.session import TranscriptEntry
from fulgur.workspace.files import FileDiff

_PARTIAL_SECONDS = 0.25
_PARTIAL_CHARACTERS = 2000


@dataclass
class TurnState:
    """One turn; `ended` is done, stopped or failed, or empty while it runs."""

    number: int
    text: str
    ended: str = ""
    before: str | None = None
    after: str | None = None
    undone: bool = False
    let_go: bool = False
    """What undo needs was removed because of its age or size."""


class SessionState:
    """Every change goes to the file first, then into memory."""

    def __init__(self, log: SessionLog) -> None:
        self.log = log
        self.history = History()
        self.turns: list[TurnState] = []
        self.queued: list[str] = []
        self.plan: tuple[PlanStep, ...] = ()
        self.transcript: list[TranscriptEntry] = []
        self._open_text = ""
        self._unsaved = ""
        self._saved_at = 0.0
        self._changed_files: list[str] = []
        self.interrupted = False
        self.watch_changes: Callable[[FileDiff], None] | None = None
        """Told of every file that a tool changed."""

    @classmethod
    def load(cls, log: SessionLog) -> SessionState:
        """Load a session. A turn that a kill cut off is closed, and what had been said is kept."""
        state = cls.read(log)
        if state.turns and not state.turns[-1].ended:
            state.interrupted = True
            state.save_partial_as_message()
            outputs = [call_output(str(c["call_id"]), STOPPED_OUTPUT) for c in state.history.open_calls()]
            if outputs:
                state.add_items(outputs)
            state.end_turn("stopped", "the program ended during this turn")
        return state

    @classmethod
    def read(cls, log: SessionLog) -> SessionState:
        """Read a session without changing it: nothing is closed, and another process may still be writing it."""
        state = cls(log)
        number = 0
        for number, record in enumerate(log.records(), 1):
            try:
                if (number == 1) != (record["type"] == "session"):
                    raise ValueError("a session has exactly one head record, as its first")
                state._apply(record)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise damage(log.path, number, f"it does not fit the lines before it ({error})") from None
        if number == 0:
            raise damage(log.path, 1, "it does not start with a session's first record")
        return state

    @property
    def turn(self) -> TurnState:
        """The latest turn."""
        return self.turns[-1]

    @property
    def open_text(self) -> str:
        """The text so far of the message that the model is writing."""
        return self._open_text

    def begin_turn(self, text: str) -> int:
        """Start a turn; its prompt is on disk when this returns."""
        number = len(self.turns) + 1
        self._write({"type": "turn", "turn": number, "text": text}, durable=True)
        return number

    def add_items(self, items: list[Item], *, kind: str = "") -> None:
        """Add items of the model or its tools; `kind` is `steer` for what the person said in mid-turn."""
        if items:
            self._unsaved = ""
            self._write({"type": "items", "items": items} | ({"kind": kind} if kind else {}))

    def partial(self, text: str) -> None:
        """Add to the message that is being written; saved now and then, so that a kill loses little."""
        self._open_text += text
        self._unsaved += text
        now = time.monotonic()
        if now - self._saved_at > _PARTIAL_SECONDS or len(self._unsaved) > _PARTIAL_CHARACTERS:
            self.log.append("partial", text=self._unsaved)
            self._unsaved, self._saved_at = "", now

    def save_partial_as_message(self) -> None:
        """Keep what was said before the stream was cut as a separate message."""
        if self._open_text:
            self.add_items([message("assistant", self._open_text)])

    def changed(self, diff: FileDiff) -> None:
        """Record a file that a tool changed."""
        self._write({"type": "change", "path": diff.path, "kind": diff.kind, "diff": diff.diff})
        if self.watch_changes is not None:
            self.watch_changes(diff)

    def planned(self, steps: Sequence[PlanStep]) -> None:
        """Record the model's current plan."""
        self._write({"type": "plan", "steps": [msgspec.structs.asdict(step) for step in steps]})

    def recent_files(self) -> list[str]:
        """Files changed in this session, the latest first."""
        return self._changed_files[::-1]

    def snapshot(self, when: str, manifest: str) -> None:
        """Record a snapshot of the workspace `before` or `after` the turn's changes."""
        self._write({"type": "snapshot", "when": when, "manifest": manifest})

    def compacted(self, items: list[Item]) -> None:
        """From now on, show the model `items` instead of everything so far."""
        self._write({"type": "compaction", "items": items})

    def end_turn(self, how: str, text: str = "") -> None:
        """End the turn; on disk when this returns."""
        self._write({"type": "end", "turn": self.turn.number, "how": how, "message": text}, durable=True)

    def queue(self, text: str) -> None:
        """Queue a prompt for later."""
        self._write({"type": "queued", "text": text}, durable=True)

    def take_queued(self) -> str:
        """Remove and return the next queued prompt."""
        text = self.queued[0]
        self._write({"type": "taken"})
        return text

    def withdraw(self, text: str) -> None:
        """Remove a queued prompt: the last one with this text."""
        self._write({"type": "withdrawn", "text": text})

    def undone(self, turn: int, paths: list[str]) -> None:
        """Record that the turn's file changes were undone; the model sees it too."""
        self._write({"type": "undo", "turn": turn, "paths": paths})

    def chose_model(self, model: str, provider: str) -> None:
        """Record that another model answers from here on."""
        self._write({"type": "model", "model": model, "provider": provider})

    def answered(self, model: str, response_id: str | None) -> None:
        """Record the model that the server named in a response: the proof of who answered."""
        self._write({"type": "answered", "model": model, "response_id": response_id or ""})

    def member(self, finished: MemberFinished) -> None:
        """Record a subagent's end, with the models that answered it."""
        fields = msgspec.structs.asdict(finished)
        self._write({"type": "member", **fields})

    def _write(self, record: Record, *, durable: bool = False) -> None:
        fields = {key: value for key, value in record.items() if key != "type"}
        self.log.append(record["type"], durable=durable, **fields)
        self._apply(record)

    def _apply(self, record: Record) -> None:
        match record["type"]:
            case "turn":
                self.turns.append(TurnState(record["turn"], record["text"]))
                self.history.add([message("user", record["text"])])
                self._show("user", record["text"])
            case "items":
                self.history.add(record["items"])
                for item in record["items"]:
                    self._show_item(item, record.get("kind", ""))
            case "partial":
                self._open_text += record["text"]
            case "change":
                if record["path"] in self._changed_files:
                    self._changed_files.remove(record["path"])
                self._changed_files.append(record["path"])
                self._show("diff", record["diff"])
            case "plan":
                self.plan = tuple(msgspec.convert(record["steps"], list[PlanStep]))
            case "snapshot":
                setattr(self.turn, record["when"], record["manifest"])
            case "compaction":
                self.history.begin_anew(record["items"])
                self._show("note", "compacted")
            case "end":
                self.turn.ended = record["how"] or "stopped"
                self._open_text = ""
                if record["how"] != "done":
                    self._show("note", f"{record['how']}: {record['message']}" if record["message"] else record["how"])
            case "let_go":
                for turn in self.turns:
                    turn.let_go = True
                self._show("note", "the undo data of the turns so far was pruned (`undo_days`, `undo_megabytes`)")
            case "queued":
                self.queued.append(record["text"])
            case "taken":
                self.queued.pop(0)
            case "withdrawn":
                del self.queued[len(self.queued) - 1 - self.queued[::-1].index(record["text"])]
            case "member":
                who = f"answered by {', '.join(record['models'])}" if record["models"] else "without a model"
                note = f"{record['member']}: {record['how']}, {who} (asked for: {record['model']})"
                self._show("note", f"{note}, session {record['session_id']}")
            case "undo":
                if not 1 <= record["turn"] <= len(self.turns):
                    raise ValueError(f"there is no turn {record['turn']}")
                self.turns[record["turn"] - 1].undone = True
                note = f"[The person took back the file changes of turn {record['turn']}: {', '.join(record['paths'])}]"
                self.history.add([message("user", note)])
                self._show("note", f"undid turn {record['turn']}: {', '.join(record['paths'])}")

    def _show_item(self, item: Item, kind: str) -> None:
        if item.get("type") == "message":
            own = item.get("role") == "assistant"
            if own:
                self._open_text = ""
            self._show("assistant" if own else kind or "note", item_text(item))
        elif item.get("type") == "function_call":
            self._show("tool", call_title(str(item.get("name")), str(item.get("arguments", ""))))

    def _show(self, kind: str, text: str) -> None:
        turn = self.turns[-1].number if self.turns else 0
        self.transcript.append(TranscriptEntry(turn=turn, kind=kind, text=text))
