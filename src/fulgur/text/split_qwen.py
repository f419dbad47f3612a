"""Qwen3-Coder tool calls: parameters as bare text between markers.

    <tool_call>
    <function=edit>
    <parameter=path>
    a.py
    </parameter>
    </function>
    </tool_call>

A text parameter is passed on while it arrives; one of another type when it is complete. `</parameter>` ends a value
only if the next marker follows: a file that is written may itself contain the word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fulgur.text.arguments import ParameterTypes, value_json
from fulgur.text.json_scan import to_json
from fulgur.text.parts import CallDelta, CallEnd, CallStart
from fulgur.text.scan import CallScanner

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def _begun(marker: str) -> str:
    """A pattern for any start of the marker, the empty one included."""
    pattern = ""
    for character in reversed(marker):
        pattern = f"(?:{re.escape(character)}{pattern})?"
    return pattern


# The end of a value: its own marker before another one, or, where a model forgot it, the end of the whole call.
_VALUE_END = re.compile(
    rf"\n?(?:{_PARAMETER_END}\s*(?={_PARAMETER}|{_FUNCTION_END}|{_CALL_END})|(?={_FUNCTION_END}\s*{_CALL_END}))"
)
# What at the end of the buffer may become one.
_VALUE_END_BEGUN = re.compile(
    rf"\n?(?:{_PARAMETER_END}\s*(?:{_begun(_PARAMETER)}|{_begun(_FUNCTION_END)}|{_begun(_CALL_END)})\Z"
    rf"|{_FUNCTION_END}\s*{_begun(_CALL_END)}\Z|{_begun(_PARAMETER_END)}\Z|{_begun(_FUNCTION_END)}\Z)"
)
_NAME = re.compile(r"[ \t]*([^<>\n]*?)[ \t]*>")
_NAME_BEGUN = re.compile(r"[^<>\n]*\Z")


class QwenCoderSplitter(CallScanner):
    """Text, reasoning and `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…`."""

    opens = (_CALL, _FUNCTION)  # the outer marker is sometimes left out

    def __init__(self, tools: Sequence[dict[str, Any]] | None = None, *, thinking: bool = False) -> None:
        super().__init__(thinking=thinking)
        self._types = ParameterTypes(tools)

    def _call(self, marker: str) -> bool:
        return self._go(self._name if marker == _FUNCTION else self._function)

    def _function(self) -> bool:
        if not self._eat_space() or self._could_be(_FUNCTION):
            return self._wait()
        if not self._buffer.startswith(_FUNCTION):
            return self._break(f"{_FUNCTION} is missing")
        self._eat(len(_FUNCTION))
        return self._go(self._name)

    def _name(self) -> bool:
        name = self._name_ahead()
        if name is None:
            return self._wait()
        if not name:
            return self._break("the function has no name")
        self._function_name, self._keys = name, set[str]()
        self._started = True
        self._parts.append(CallStart(name))
        return self._go(self._parameters)

    def _parameters(self) -> bool:
        """Between parameters: another one, or the end."""
        markers = (_PARAMETER, _FUNCTION_END, _CALL_END)
        if not self._eat_space() or self._could_be(*markers):
            return self._wait()
        if self._buffer.startswith(_PARAMETER):
            self._eat(len(_PARAMETER))
            return self._go(self._key)
        if not self._buffer.startswith(markers):
            return self._break("found something else where a parameter was expected")
        if self._buffer.startswith(_FUNCTION_END):
            self._eat(len(_FUNCTION_END))
        self._arguments("}" if self._keys else "{}")
        self._parts.append(CallEnd())
        self._started = False
        return self._go(self._maybe_close)  # or another function in the same call

    def _key(self) -> bool:
        key = self._name_ahead()
        if key is None:
            return self._wait()
        if not key or key in self._keys:
            return self._break(f"the parameter {key!r} is given twice" if key else "a parameter has no name")
        types = self._types.of(self._function_name, key)
        self._separator = ", " if self._keys else "{"
        self._keys.add(key)
        self._key_json = to_json(key)
        self._value_types = types
        self._value = ""
        return self._go(self._value_start)

    def _value_start(self) -> bool:
        """One line break after the marker is layout."""
        if not self._buffer:
            return self._wait()
        if self._buffer.startswith("\n"):
            self._eat(1)
        if self._streams:
            self._arguments(f'{self._separator}{self._key_json}: "')
        return self._go(self._value_text)

    @property
    def _streams(self) -> bool:
        return self._value_types == {"string"}

    def _value_text(self) -> bool:
        end = _VALUE_END.search(self._buffer)
        begun = _VALUE_END_BEGUN.search(self._buffer)
        assert begun is not None  # the empty start, at the very end
        safe = min(end.start() if end else len(self._buffer), len(self._buffer) if self._final else begun.start())
        text = self._eat(safe)
        if self._streams:
            self._arguments(to_json(text)[1:-1])
        else:
            self._value += text
        if end is None or safe < end.start():
            return self._wait()
        self._eat(end.end() - end.start())
        self._arguments(
            '"' if self._streams else f"{self._separator}{self._key_json}: {value_json(self._value, self._value_types)}"
        )
        return self._go(self._parameters)

    def _name_ahead(self) -> str | None:
        """Take `NAME>`: None if more text is needed, empty if it is no name."""
        match = _NAME.match(self._buffer)
        if match is None:
            return None if not self._final and _NAME_BEGUN.match(self._buffer) else ""
        self._eat(match.end())
        return match[1]

    def _arguments(self, text: str) -> None:
        if text:
            self._parts.append(CallDelta(text))

    def _wait(self) -> bool:
        """More text is needed; if there is none, the call is broken."""
        return self._break("the answer ended inside the call") if self._final else False
