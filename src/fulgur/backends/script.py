"""What the scripted backend plays: replies made of steps. `scripted.py` describes the format."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from fulgur.errors import UsageError
from fulgur.text.parts import CallDelta, CallStart, ReasoningDelta, TextDelta


class Step(msgspec.Struct, forbid_unknown_fields=True):
    """One thing the model does; exactly one of the first six fields is set."""

    text: str | None = None
    reasoning: str | None = None
    tokens: int | None = None
    call: str | None = None
    custom: str | None = None
    fail: str | None = None
    delay: float = 0.0
    arguments: dict[str, Any] | str | None = None
    input: str = ""
    namespace: str | None = None


class Reply(msgspec.Struct, forbid_unknown_fields=True):
    steps: list[Step]
    match: str | None = None
    after: str | None = None
    times: int | None = None


class Script(msgspec.Struct, forbid_unknown_fields=True):
    reply: list[Reply] = []
    rate: float = 0.0
    prefill_rate: float = 0.0


def load_script(path: Path) -> Script:
    """Read a script file; a UsageError names what is wrong in it."""
    try:
        raw = path.read_bytes()
        data = msgspec.json.decode(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
        return msgspec.convert(data, Script)
    except OSError as error:
        raise UsageError(f"Cannot read the script {path}: {error.strerror}") from None
    except (msgspec.ValidationError, msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None


def opening(step: Step) -> tuple[CallStart | None, type[TextDelta] | type[ReasoningDelta] | type[CallDelta], str]:
    """What a step begins with, the kind of its deltas, and their text."""
    if step.call is not None:
        arguments = step.arguments if isinstance(step.arguments, str) else msgspec.json.encode(step.arguments or {})
        text = arguments if isinstance(arguments, str) else arguments.decode()
        return CallStart(step.call, namespace=step.namespace), CallDelta, text
    if step.custom is not None:
        return CallStart(step.custom, custom=True, namespace=step.namespace), CallDelta, step.input
    if step.reasoning is not None:
        return None, ReasoningDelta, step.reasoning
    if step.tokens is not None:
        return None, TextDelta, _numbered(step.tokens)
    return None, TextDelta, step.text or ""


@functools.lru_cache(16)
def _numbered(tokens: int) -> str:
    return "".join(f" w{index % 10000:04d}" for index in range(tokens))
