"""What all splitters share: a buffer, states that take from it, and reasoning between `<think>` and `</think>`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fulgur.text.parts import Malformed, Part, ReasoningDelta, TextDelta

THINK, THINK_END = "<think>", "</think>"


def partial(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the start of one of the markers."""
    longest = min(len(text), max(map(len, markers)) - 1)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(marker.startswith(end) for marker in markers):
            return length
    return 0


def first_of(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """The earliest marker in `text` and its place."""
    found = [(place, marker) for marker in markers if (place := text.find(marker)) >= 0]
    return min(found) if found else None


class Scanner:
    """A state machine over a stream of text.

    A state is a method that takes from the buffer and returns whether to continue; False means that it needs more text.
    """

    def __init__(self, first: Callable[[], bool]) -> None:
        self._state = first
        self._buffer = ""
        self._final = False
        self._parts: list[Part] = []

    def feed(self, text: str) -> list[Part]:
        """More of the answer; returns what it completes."""
        self._buffer += text
        return self._run()

    def finish(self) -> list[Part]:
        """The answer has ended; returns what was held back."""
        self._final = True
        return self._run()

    def _run(self) -> list[Part]:
        while self._state():
            pass
        parts, self._parts = self._parts, []
        return parts

    def _go(self, state: Callable[[], bool]) -> bool:
        self._state = state
        return True

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _skip_space(self) -> bool:
        """Drop white space; False when nothing is left to look at."""
        self._buffer = self._buffer.lstrip()
        return bool(self._buffer)

    def _could_be(self, *markers: str) -> bool:
        """Whether the buffer is the start of a marker, so that more text is needed to tell."""
        return not self._final and any(self._buffer != mark and mark.startswith(self._buffer) for mark in markers)


class ThinkingScanner(Scanner):
    """Reasoning first, then what a subclass makes of the text: its state `_text`.

    `<think>` counts only at the very start of an answer: later it is something the answer talks about. White space
    around the two markers is layout and dropped. `thinking`: the prompt ended with an open `<think>`.
    """

    think, think_end = THINK, THINK_END

    def __init__(self, *, thinking: bool = False) -> None:
        super().__init__(self._reasoning_start if thinking else self._start)

    def _text(self) -> bool:
        raise NotImplementedError

    def _start(self) -> bool:
        ahead = self._buffer.lstrip()
        if ahead.startswith(self.think):
            self._buffer = ahead.removeprefix(self.think)
            return self._go(self._reasoning_start)
        if self.think.startswith(ahead) and not self._final:
            return False
        return self._go(self._text)

    def _reasoning_start(self) -> bool:
        if not self._skip_space() or self._could_be(self.think):
            return False
        if self._buffer.startswith(self.think):  # some models repeat the prompt's marker
            self._take(len(self.think))
            return True
        return self._go(self._reasoning)

    def _reasoning(self) -> bool:
        place = self._buffer.find(self.think_end)
        if place >= 0:
            self._say(ReasoningDelta, self._buffer[:place].rstrip())
            self._take(place + len(self.think_end))
            return self._go(self._answer_start)
        self._say_safe(ReasoningDelta, [self.think_end])
        return False

    def _answer_start(self) -> bool:
        return self._skip_space() and self._go(self._text)

    def _say(self, kind: type[TextDelta] | type[ReasoningDelta], text: str) -> None:
        if text:
            self._parts.append(kind(text))

    def _say_safe(self, kind: type[TextDelta] | type[ReasoningDelta], markers: Sequence[str]) -> None:
        """Pass on all but what may be the start of a marker, and the white space before it."""
        safe = len(self._buffer)
        if not self._final:
            safe = len(self._buffer[: safe - partial(self._buffer, markers)].rstrip())
        self._say(kind, self._take(safe))


class CallScanner(ThinkingScanner):
    """Text with calls in it. Subclasses give the markers that open a call and the state `_call` that reads one.

    `_raw` holds all text of the call being read, so that a broken one can be given back whole.
    """

    opens: tuple[str, ...] = ("<tool_call>",)
    close = "</tool_call>"

    def __init__(self, *, thinking: bool = False) -> None:
        super().__init__(thinking=thinking)
        self._started = False
        self._raw: list[str] = []
        self._reason = ""

    def _call(self, marker: str) -> bool:
        raise NotImplementedError

    def _reasoning(self) -> bool:
        """Some models call a tool in the middle of their reasoning and end there. So what may be such a call is held
        back: it is one if the answer ends with it, and a part of the reasoning if more of that follows."""
        found = first_of(self._buffer, self.opens)
        if found is None or self.think_end in self._buffer:
            if self.think_end in self._buffer:
                return super()._reasoning()
            self._say_safe(ReasoningDelta, [self.think_end, *self.opens])
            return False
        place, marker = found
        self._say(ReasoningDelta, self._take(len(self._buffer[:place].rstrip())))
        held = self._buffer.strip()
        if self._may_be_calls(held):
            if not self._final:
                return False
            if held.endswith(self.close):
                return self._go(self._answer_start)
        self._say(ReasoningDelta, self._take(self._buffer.find(marker) + len(marker)))
        return True

    def _may_be_calls(self, text: str) -> bool:
        """Whether a text is calls and nothing else, as far as it goes."""
        while text := text.lstrip():
            marker = next((marker for marker in self.opens if text.startswith(marker)), None)
            if marker is None:
                return any(marker.startswith(text) for marker in (*self.opens, self.think_end))
            body = text[len(marker) :]
            if marker != self.opens[0]:
                body = body.partition(">")[2]  # it ends in the name of a function
            if body.strip() and body.lstrip()[0] not in "{<":
                return False
            end = text.find(self.close)
            text = text[end + len(self.close) :] if end >= 0 else ""
        return True

    def _text(self) -> bool:
        found = first_of(self._buffer, self.opens)
        if found is None:
            self._say_safe(TextDelta, self.opens)
            return False
        place, marker = found
        self._say(TextDelta, self._take(place).rstrip())
        self._raw, self._started = [self._take(len(marker))], False
        return self._call(marker)

    def _eat(self, count: int) -> str:
        """Take text that belongs to the call."""
        taken = self._take(count)
        self._raw.append(taken)
        return taken

    def _eat_space(self) -> bool:
        """Take white space that belongs to the call; False when nothing is left to look at."""
        self._eat(len(self._buffer) - len(self._buffer.lstrip()))
        return bool(self._buffer)

    def _maybe_close(self) -> bool:
        """After a call: its closing marker, which a model may forget."""
        if not self._skip_space() or self._could_be(self.close):
            return False
        self._buffer = self._buffer.removeprefix(self.close)
        return self._go(self._answer_start)

    def _break(self, reason: str) -> bool:
        """The call is broken: gather the rest of it."""
        self._reason = reason
        return self._go(self._broken)

    def _broken(self) -> bool:
        """A broken call lasts to its closing marker, to the next call, or to the end of the answer."""
        found = first_of(self._buffer, [self.close, self.opens[0]])
        if found is None:
            self._eat(len(self._buffer) - (0 if self._final else partial(self._buffer, [self.close, self.opens[0]])))
            if not self._final:
                return False
        else:
            place, marker = found
            self._eat(place + (len(marker) if marker == self.close else 0))
        self._parts.append(Malformed("".join(self._raw), self._reason, self._started))
        self._started = False
        return self._go(self._answer_start)
