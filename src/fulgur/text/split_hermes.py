"""Hermes tool calls, as Qwen2.5, Qwen3 and many others write them: JSON between two markers.

    <tool_call>
    {"name": "read", "arguments": {"path": "a.py"}}
    </tool_call>

Arguments are passed on while they arrive, as soon as the name is known. The call ends with its last brace, before the
closing marker has come.
"""

from __future__ import annotations

import json

from fulgur.text.json_scan import JsonError, JsonScanner, to_json
from fulgur.text.parts import CallDelta, CallEnd, CallStart, Malformed
from fulgur.text.scan import CallScanner, first_of, partial

_ARGUMENTS = ("arguments", "parameters")


class HermesSplitter(CallScanner):
    """Text, reasoning and `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    def _call(self, marker: str) -> bool:
        self._envelope = _Envelope()
        return self._go(self._object)

    def _object(self) -> bool:
        envelope = self._envelope
        taken = 0
        reason = None
        try:
            while taken < len(self._buffer) and not envelope.done:
                taken = envelope.take(self._buffer, taken)
        except JsonError as error:
            reason = str(error)
        self._eat(taken)
        self._pass_on()
        if reason is None and envelope.done:
            return self._finish_call()
        if reason is None and self._final:
            reason = "the answer ended inside the call"
        return False if reason is None else self._break(reason)

    def _pass_on(self) -> None:
        """Pass on the name and the arguments as far as they are known."""
        envelope = self._envelope
        if envelope.name is None:
            return
        if not self._started:
            self._started = True
            self._parts.append(CallStart(envelope.name))
        if envelope.arguments:
            self._parts.append(CallDelta("".join(envelope.arguments)))
            envelope.arguments = []

    def _finish_call(self) -> bool:
        if self._envelope.name is None:
            return self._break("the call has no name")
        if not self._envelope.has_arguments:
            self._parts.append(CallDelta("{}"))
        self._parts.append(CallEnd())
        self._started = False
        return self._go(self._close_call)

    def _close_call(self) -> bool:
        """After the object: the closing marker, the next call or the end of the answer."""
        if not self._skip_space() or self._could_be(self.close, *self.opens):
            return False
        if self._buffer.startswith((self.close, *self.opens)):
            return self._go(self._maybe_close)
        self._raw = []
        return self._go(self._surplus)

    def _surplus(self) -> bool:
        """Give back anything else, such as an extra brace, up to the next marker or the end of the line."""
        stops = [self.close, *self.opens, "\n"]
        found = first_of(self._buffer, stops)
        held = 0 if self._final else partial(self._buffer, stops)
        self._eat(found[0] if found else len(self._buffer) - held)
        if found is None and not self._final:
            return False
        self._parts.append(Malformed("".join(self._raw), "text after the end of a call"))
        return self._go(self._maybe_close)


class _Envelope:
    """Reads `{"name": …, "arguments": …}`, in any order, other keys passed over."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.arguments: list[str] = []  # known and not yet passed on
        self.has_arguments = False
        self._scanner = JsonScanner()
        self._key = ""
        self._value: list[str] | None = None  # the value of the outer object being read
        self._in_key = False

    @property
    def done(self) -> bool:
        return self._scanner.done

    def take(self, text: str, start: int) -> int:
        """Take one character, or a run of ordinary ones; returns where to continue."""
        scanner = self._scanner
        end = scanner.run_end(text, start)
        if end > start:
            self._note(text[start:end])
            return end
        if scanner.depth == 0 and text[start] not in "{ \t\r\n":
            raise JsonError(f"unexpected {text[start]!r} where an object was expected")
        before, depth = scanner.state, scanner.depth
        piece = scanner.step(text[start])
        if depth == 1:
            if before in ("first key", "key") and scanner.state == "string":
                self._key, self._in_key = "", True
            elif before == "value" and text[start] not in " \t\r\n":
                self._begin_value()
        self._note(piece)
        if self._in_key and scanner.state == "colon":
            self._key, self._in_key = json.loads(self._key), False
        elif self._value is not None and (scanner.done or (scanner.depth == 1 and scanner.state in ("after", "key"))):
            self._end_value()
        return start + 1

    def _begin_value(self) -> None:
        self._value = []
        if (self._key == "name" and self.name is not None) or (self._key in _ARGUMENTS and self.has_arguments):
            raise JsonError(f"{self._key!r} is given twice")
        self.has_arguments = self.has_arguments or self._key in _ARGUMENTS

    def _note(self, piece: str) -> None:
        if self._in_key:
            self._key += piece
        elif self._value is not None:
            # An object is passed on as it comes; only its first character has to be remembered.
            streams = self._key in _ARGUMENTS and (self._value or [piece])[0] == "{"
            if streams:
                self.arguments.append(piece)
            if not streams or not self._value:
                self._value.append(piece)

    def _end_value(self) -> None:
        value, self._value = "".join(self._value or []).rstrip(", \t\r\n"), None
        if self._key == "name":
            if not value.startswith('"') or not (name := json.loads(value)):
                raise JsonError("the name is not a string")
            self.name = name
        elif self._key in _ARGUMENTS and not value.startswith("{"):
            self.arguments = [_unpacked(value)]


def _unpacked(value: str) -> str:
    """Convert arguments that are not an object: null means none, and some models put the object into a string."""
    if value == "null":
        return "{}"
    if value.startswith('"'):
        try:
            inner = json.loads(json.loads(value), strict=False)
            if isinstance(inner, dict):
                return to_json(inner)
        except (ValueError, RecursionError):
            pass
    raise JsonError("the arguments are not an object")
