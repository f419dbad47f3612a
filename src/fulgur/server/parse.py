"""Bytes to requests: one decode, limits on nesting, and errors that name the field."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.items import split_validation_error

T = TypeVar("T")
_decode = msgspec.json.Decoder().decode


def decode_object(data: bytes | str, max_nesting: int) -> dict[str, Any]:
    """A JSON object of bounded depth, or a 400."""
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise _too_deep(max_nesting) from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    _check_depth(value, max_nesting)
    return value


def convert(value: dict[str, Any], kind: type[T]) -> T:
    """The typed request; a wrong or missing field is a 400 that names it."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, field = split_validation_error(error)
        name = field.lstrip(".") or None
        code = "missing_required_parameter" if "missing required" in message else "invalid_type"
        raise invalid(f"Invalid '{name}': {message}." if name else f"{message}.", name, code) from None


def in_range(value: float | None, low: float, high: float, name: str) -> None:
    if value is not None and not low <= value <= high:
        raise invalid(f"Invalid '{name}': {value} is not between {low} and {high}.", name, "invalid_value")


def at_least(value: int | None, low: int, name: str) -> None:
    if value is not None and value < low:
        raise invalid(f"Invalid '{name}': {value} is below the least value, {low}.", name, "invalid_value")


def _check_depth(value: Any, limit: int) -> None:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep(limit)


def _too_deep(limit: int) -> ApiError:
    return invalid(f"The body is nested more than {limit} levels deep.", code="too_deeply_nested")
