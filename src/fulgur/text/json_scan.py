"""JSON read one character at a time: whether it is still valid, and where a value ends.

Used while a tool call streams, so that its arguments can be passed on before the call is complete and are valid JSON
when it is.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = frozenset("0123456789")

# After a part of a number: the characters that may follow, each with the part it leads to.
_NUMBER: dict[str, tuple[tuple[frozenset[str], str], ...]] = {
    "minus": ((frozenset("0"), "zero"), (_DIGITS, "whole")),
    "zero": ((frozenset("."), "point"), (frozenset("eE"), "e")),
    "whole": ((_DIGITS, "whole"), (frozenset("."), "point"), (frozenset("eE"), "e")),
    "point": ((_DIGITS, "fraction"),),
    "fraction": ((_DIGITS, "fraction"), (frozenset("eE"), "e")),
    "e": ((frozenset("+-"), "sign"), (_DIGITS, "exponent")),
    "sign": ((_DIGITS, "exponent"),),
    "exponent": ((_DIGITS, "exponent"),),
}
_NUMBER_ENDS = frozenset(["zero", "whole", "fraction", "exponent"])


class JsonError(ValueError):
    """The text is not JSON; the character that shows it was not taken."""


class JsonScanner:
    """Follows one JSON value that starts with the first character that is not white space.

    state: "value", "first key", "key", "colon", "after" (a value), "string", "escape", "unicode", "literal", "number"
    or "done". A number at the top level has no end of its own, so the value should be an object or an array.
    """

    def __init__(self) -> None:
        self.state = "value"
        self.is_key = False
        self._open: list[str] = []
        self._rest = ""
        self._number: str | None = None
        self._first_item = False

    @property
    def depth(self) -> int:
        """How many objects and arrays are open."""
        return len(self._open)

    @property
    def done(self) -> bool:
        return self.state == "done"

    def run_end(self, text: str, start: int) -> int:
        """The end of the ordinary string characters from `start` on: they can be taken in one go."""
        if self.state != "string":
            return start
        match = _PLAIN.match(text, start)
        return match.end() if match else start

    def step(self, character: str) -> str:
        """Take one character and return it, or its escape where a string holds a bare line break or other control."""
        state = self.state
        if state == "string":
            return self._in_string(character)
        if state == "escape":
            self._take_escape(character)
        elif state == "unicode":
            self._take_hex(character)
        elif state == "literal":
            self._take_literal(character)
        elif self._number is not None and self._take_number(character):
            pass
        elif character not in _SPACE:
            self._take_structure(character)
        return character

    def _in_string(self, character: str) -> str:
        if character == '"':
            self.state = "colon" if self.is_key else "after"
            self._value_ended()
        elif character == "\\":
            self.state = "escape"
        elif character < " ":  # models write bare line breaks into strings: clear in meaning, and easily escaped
            return json.dumps(character)[1:-1]
        return character

    def _take_escape(self, character: str) -> None:
        if character == "u":
            self.state, self._rest = "unicode", "...."
        elif character in '"\\/bfnrt':
            self.state = "string"
        else:
            raise JsonError(f"\\{character} is not a valid escape in a JSON string")

    def _take_hex(self, character: str) -> None:
        if character not in _HEX:
            raise JsonError("\\u is not followed by four hexadecimal digits")
        self._rest = self._rest[1:]
        if not self._rest:
            self.state = "string"

    def _take_literal(self, character: str) -> None:
        if not self._rest.startswith(character):
            raise JsonError(f"unexpected {character!r} in a literal")
        self._rest = self._rest[1:]
        if not self._rest:
            self.state = "after"
            self._value_ended()

    def _take_number(self, character: str) -> bool:
        """False when the character does not belong to the number, which then has ended."""
        assert self._number is not None
        for characters, following in _NUMBER[self._number]:
            if character in characters:
                self._number = following
                return True
        if self._number not in _NUMBER_ENDS:
            raise JsonError(f"unexpected {character!r} in a number")
        self._number = None
        self.state = "after"
        self._value_ended()
        return False

    def _take_structure(self, character: str) -> None:
        state = self.state
        if state == "value":
            self._begin_value(character)
        elif state in ("first key", "key") and character == '"':
            self.state, self.is_key = "string", True
        elif state == "first key" and character == "}":
            self._close()
        elif state == "colon" and character == ":":
            self.state, self.is_key = "value", False
        elif state == "after" and character == "," and self._open:
            self.state = "key" if self._open[-1] == "{" else "value"
        elif state == "after" and self._open and character == {"{": "}", "[": "]"}[self._open[-1]]:
            self._close()
        else:
            raise JsonError(f"unexpected {character!r} where {_EXPECTED[state]} was expected")

    def _begin_value(self, character: str) -> None:
        first, self._first_item = self._first_item, False
        if character == "{":
            self._open.append("{")
            self.state = "first key"
        elif character == "[":
            self._open.append("[")
            self._first_item = True
        elif character == "]" and first:
            self._close()
        elif character == '"':
            self.state, self.is_key = "string", False
        elif character in _LITERALS:
            self.state, self._rest = "literal", _LITERALS[character][1:]
        elif character == "-" or character in _DIGITS:
            self.state = "number"
            self._number = {"-": "minus", "0": "zero"}.get(character, "whole")
        else:
            raise JsonError(f"unexpected {character!r} where a value was expected")

    def _close(self) -> None:
        self._open.pop()
        self.state = "after"
        self._value_ended()

    def _value_ended(self) -> None:
        if self.state == "after" and not self._open:
            self.state = "done"


_EXPECTED = {
    "first key": "a key or '}'",
    "key": "a key",
    "colon": "':'",
    "after": "',' or the end",
    "done": "nothing more",
}


def to_json(value: Any) -> str:
    """JSON text of a value; ValueError for what JSON cannot hold. Escapes only what UTF-8 cannot carry."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text
