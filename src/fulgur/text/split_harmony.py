"""gpt-oss's harmony format: messages with a channel and perhaps a recipient.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path": "a.py"}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

The prompt ends with `<|start|>assistant`, so an answer begins in the middle of a header. Two messages of one kind in a
row are separated by an empty line.
"""

from __future__ import annotations

import re

from fulgur.text.json_scan import JsonError, JsonScanner
from fulgur.text.parts import CallDelta, CallEnd, CallStart, Malformed, ReasoningDelta, TextDelta
from fulgur.text.scan import Scanner, first_of, partial

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKERS = (_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS)
_BODY_STOPS = (*_ENDS, _START, _CHANNEL)
_HEADER_STOPS = (_MESSAGE, *_ENDS)

_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonySplitter(Scanner):
    """Channels: analysis is reasoning, anything with a recipient is a tool call, the rest is text."""

    def __init__(self) -> None:
        super().__init__(self._first)
        self._started = False
        self._raw: list[str] = []
        self._kind: type[TextDelta] | type[ReasoningDelta] = TextDelta
        self._spoken: type[TextDelta] | type[ReasoningDelta] | None = None
        self._fresh = True
        self._reason = ""

    def _first(self) -> bool:
        """The rest of the prompt's header, or text from a model that does not keep to the format."""
        ahead = self._buffer.lstrip()
        header = ("to=", *MARKERS)
        if not self._final and any(start != ahead and start.startswith(ahead) for start in header):
            return False
        return self._go(self._header_start if ahead.startswith(header) else self._between)

    def _between(self) -> bool:
        """Between messages."""
        if not self._skip_space() or self._could_be(*MARKERS):
            return False
        if self._buffer.startswith(_ENDS):  # one more than needed
            return self._end_message((0, next(end for end in _ENDS if self._buffer.startswith(end))))
        if self._buffer.startswith(MARKERS):
            return self._go(self._header_start)
        return self._begin_text(TextDelta)

    def _header_start(self) -> bool:
        self._started = False
        return self._go(self._header)

    def _header(self) -> bool:
        found = first_of(self._buffer, _HEADER_STOPS)
        if found is None:
            if self._final and self._buffer:
                self._parts.append(Malformed(self._take(len(self._buffer)), "the answer ended inside a header"))
            return False
        place, marker = found
        header = self._take(place + len(marker))
        self._raw = [header]
        if marker != _MESSAGE:
            self._parts.append(Malformed(header, "a header without a message"))
            return self._go(self._between)
        if recipient := _RECIPIENT.search(header):
            return self._begin_call(recipient[1].removeprefix("functions."))
        channel = _CHANNEL_NAME.search(header)
        return self._begin_text(ReasoningDelta if channel and channel[1] == "analysis" else TextDelta)

    def _begin_call(self, name: str) -> bool:
        self._spoken = None
        if not name:
            self._reason = "the call has no name"
            return self._go(self._broken)
        self._started = True
        self._scanner = JsonScanner()
        self._parts.append(CallStart(name))
        return self._go(self._call)

    def _begin_text(self, kind: type[TextDelta] | type[ReasoningDelta]) -> bool:
        self._kind, self._fresh = kind, True
        return self._go(self._body)

    def _body(self) -> bool:
        found = first_of(self._buffer, _BODY_STOPS)
        place = found[0] if found else len(self._buffer) - (0 if self._final else partial(self._buffer, _BODY_STOPS))
        if text := self._take(place):
            separator = "\n\n" if self._fresh and self._spoken is self._kind else ""
            self._parts.append(self._kind(separator + text))
            self._spoken, self._fresh = self._kind, False
        return self._end_message(found)

    def _call(self) -> bool:
        """Arguments are passed on while they arrive."""
        scanner, taken, pieces = self._scanner, 0, []
        stop = self._stop_ahead()
        try:
            while taken < len(self._buffer) and not scanner.done and stop is False:
                end = scanner.run_end(self._buffer, taken)
                if end > taken:
                    pieces.append(self._buffer[taken:end])
                else:
                    end = taken + 1
                    if scanner.depth == 0 and self._buffer[taken] not in "{ \t\r\n":
                        raise JsonError(f"unexpected {self._buffer[taken]!r} where an object was expected")
                    piece = scanner.step(self._buffer[taken])
                    pieces.append(piece if scanner.depth or scanner.done else "")
                taken = end
        except JsonError as error:
            self._reason = str(error)
        self._raw.append(self._take(taken))
        self._arguments("".join(pieces))
        if self._reason:
            return self._go(self._broken)
        if scanner.done or (stop and scanner.depth == 0):
            if not scanner.done:
                self._arguments("{}")
            self._parts.append(CallEnd())
            self._started, self._raw = False, []
            return self._go(self._surplus)
        if self._final:
            self._reason = "the answer ended inside the call"
            return self._go(self._broken)
        return False

    def _stop_ahead(self) -> bool | None:
        """Before the arguments: whether the message ends right here (a call without any); None if not yet known."""
        if self._scanner.depth or self._scanner.done:
            return False
        ahead = self._buffer.lstrip()
        if not ahead:
            return True if self._final else None
        if ahead.startswith(_BODY_STOPS):
            return True
        return None if not self._final and any(stop.startswith(ahead) for stop in _BODY_STOPS) else False

    def _surplus(self) -> bool:
        """After a complete call nothing but the end of the message belongs here."""
        return self._rest("text after the end of a call", keep_blank=False)

    def _broken(self) -> bool:
        return self._rest(self._reason, keep_blank=True)

    def _rest(self, reason: str, *, keep_blank: bool) -> bool:
        """Give back the text before the end of the message as malformed."""
        found = first_of(self._buffer, _BODY_STOPS)
        place = found[0] if found else len(self._buffer) - (0 if self._final else partial(self._buffer, _BODY_STOPS))
        self._raw.append(self._take(place))
        if found is None and not self._final:
            return False
        text = "".join(self._raw)
        if keep_blank or text.strip():
            self._parts.append(Malformed(text, reason, self._started))
        self._raw, self._reason, self._started = [], "", False
        return self._end_message(found)

    def _end_message(self, found: tuple[int, str] | None) -> bool:
        """Take the end marker that was found in front; False when there is none yet."""
        if found is None:
            return False
        if found[1] in _ENDS:
            self._take(len(found[1]))
        return self._go(self._between)

    def _arguments(self, text: str) -> None:
        if text:
            self._parts.append(CallDelta(text))
