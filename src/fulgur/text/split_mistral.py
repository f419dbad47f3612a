"""Mistral's tool calls, one marker before each, and its own markers of reasoning.

    [THINK]First I look.[/THINK]Text.[TOOL_CALLS]read[ARGS]{"path": "a.py"}[TOOL_CALLS]list[ARGS]{}

Older models write a list of objects after one marker: [TOOL_CALLS][{"name": "read", "arguments": {"path": "a.py"}}].
"""

from __future__ import annotations

from fulgur.text.json_scan import JsonError, JsonScanner
from fulgur.text.parts import CallDelta, CallEnd, CallStart
from fulgur.text.scan import ThinkingScanner
from fulgur.text.split_hermes import HermesSplitter

THINK, THINK_END, CALL, ARGS = "[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"
MARKERS = (THINK, THINK_END, CALL, ARGS)
_CALL_ID = "[CALL_ID]"  # some versions put an id between name and arguments


class MistralSplitter(HermesSplitter):
    """Text, reasoning and `[TOOL_CALLS]name[ARGS]{…}`."""

    think, think_end = THINK, THINK_END
    opens = (CALL,)
    close = "[/TOOL_CALLS]"
    _reasoning = ThinkingScanner._reasoning  # no marker ends its calls, so one cannot be told from a mention of it

    def _call(self, marker: str) -> bool:
        self._listed = False
        return self._go(self._name)

    def _name(self) -> bool:
        if self._buffer.strip() in ("", "["):  # a list, or a marker
            return self._break("the answer ended inside the call") if self._final else False
        if self._buffer.lstrip()[0] == "[" and not self._could_be_marker():
            self._eat_space()
            self._eat(1)
            self._listed, self._any = True, False
            return self._go(self._item)
        brace = self._buffer.find("{")
        if brace < 0 and not self._final:
            return False
        head = self._buffer[: max(brace, 0)]
        name = head.split(ARGS)[0].split(_CALL_ID)[0].strip()
        if brace < 0 or not name or CALL in head:
            return self._break("the call has no arguments" if brace < 0 or CALL in head else "the call has no name")
        self._eat(brace)
        self._parts.append(CallStart(name))
        self._started = True
        self._scanner = JsonScanner()
        return self._go(self._arguments)

    def _could_be_marker(self) -> bool:
        """Whether what looks like the start of a list is, or may become, `[ARGS]` without a name."""
        ahead = self._buffer.lstrip()
        return ahead.startswith(ARGS) or ARGS.startswith(ahead)

    def _arguments(self) -> bool:
        scanner, taken, reason = self._scanner, 0, None
        passed: list[str] = []
        try:
            while taken < len(self._buffer) and not scanner.done:
                end = scanner.run_end(self._buffer, taken)
                if end > taken:
                    passed.append(self._buffer[taken:end])
                    taken = end
                else:
                    passed.append(scanner.step(self._buffer[taken]))
                    taken += 1
        except JsonError as error:
            reason = str(error)
        self._eat(taken)
        if text := "".join(passed):
            self._parts.append(CallDelta(text))
        if reason is None and scanner.done:
            self._parts.append(CallEnd())
            self._started = False
            return self._go(self._maybe_close)
        if reason is None and self._final:
            reason = "the answer ended inside the call"
        return False if reason is None else self._break(reason)

    def _item(self) -> bool:
        """The next object of a list, or its end."""
        if not self._eat_space():
            return self._break("the answer ended inside the list of calls") if self._final else False
        if self._buffer[0] == "]":
            self._eat(1)
            return self._go(self._maybe_close) if self._any else self._break("the list of calls is empty")
        if self._buffer[0] == ",":
            self._eat(1)
            return True
        self._any = True
        return super()._call(CALL)

    def _close_call(self) -> bool:
        if not self._listed:
            return super()._close_call()
        self._raw = []
        return self._go(self._item)
