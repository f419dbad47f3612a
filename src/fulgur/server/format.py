"""The format an answer must have: the fields of every door, converted to the one form that backends read."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from fulgur.protocol.errors import invalid
from fulgur.protocol.request import ChatRequest

Format = dict[str, Any]
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "self", "turn", "unfinished", "limit"})
_PLAIN = re.compile(r"[\w .-]{0,64}", re.ASCII)


def check_format(format: Format | None, path: str) -> Format | None:
    """text.format (or response_format) as backends read it; None for plain text."""
    if format is None or format.get("type") == "text":
        return None
    kind = format.get("type")
    if kind == "json_object":
        return format
    if kind != "json_schema":
        raise invalid(f"Invalid '{path}.type': '{kind}'.", f"{path}.type", "invalid_value")
    if not isinstance(format.get("schema"), dict):
        raise invalid(f"'{path}.schema' must be a JSON schema.", f"{path}.schema", "invalid_type")
    return format


def chat_format(body: ChatRequest) -> Format | None:
    """The format of a chat request: `response_format` or one of vLLM's fields, but only one of them."""
    wanted = [(name, value) for name in _READERS if (value := getattr(body, name)) is not None]
    if body.structured_outputs is not None:
        wanted += [(f"structured_outputs.{name}", value) for name, value in body.structured_outputs.items()]
    formats = [(name, _reader(name)(value, name)) for name, value in wanted]
    if len(formats) > 1:
        names = " and ".join(f"'{name}'" for name, _ in formats)
        raise invalid(f"Only one of {names} can be used.", formats[1][0], "invalid_value")
    return formats[0][1] if formats else None


def template_values(given: dict[str, Any] | None) -> dict[str, Any]:
    """`chat_template_kwargs`: switches for the model's template. No text goes into a prompt this way."""
    for name, value in (given or {}).items():
        path = f"chat_template_kwargs.{name}"
        if name in _OURS or name.endswith("_token"):
            raise invalid(f"'{path}' cannot be set by a client.", path, "invalid_value")
        plain = value is None or isinstance(value, bool | int | float)
        if not plain and not (isinstance(value, str) and _PLAIN.fullmatch(value)):
            raise invalid(f"'{path}' must be a number, a boolean or a short plain string.", path, "invalid_type")
    return given or {}


def _response_format(value: Any, path: str) -> Format | None:
    schema = value.get("json_schema")
    if value.get("type") == "json_schema" and isinstance(schema, dict):
        value = {"type": "json_schema", **schema}
    return check_format(value, path)


def _json(value: Any, path: str) -> Format:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise invalid(f"'{path}' is not valid JSON.", path, "invalid_value") from None
    if not isinstance(value, dict):
        raise invalid(f"'{path}' must be a JSON schema.", path, "invalid_type")
    return {"type": "json_schema", "name": "answer", "schema": value}


def _json_object(value: Any, path: str) -> Format | None:
    return {"type": "json_object"} if value else None


def _regex(value: Any, path: str) -> Format:
    return {"type": "regex", "source": _text(value, path)}


def _choice(value: Any, path: str) -> Format:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise invalid(f"'{path}' must be a list of strings.", path, "invalid_type")
    return {"type": "regex", "source": "|".join(map(re.escape, value))}


def _grammar(value: Any, path: str) -> Format:
    return {"type": "lark", "source": _text(value, path)}


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(f"'{path}' must be a string.", path, "invalid_type")
    return value


_READERS = {
    "response_format": _response_format,
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
}
_STRUCTURED = {"json": _json, "regex": _regex, "choice": _choice, "grammar": _grammar, "json_object": _json_object}


def _reader(name: str) -> Any:
    inner = name.partition(".")[2]
    reader = _STRUCTURED.get(inner) if inner else _READERS[name]
    if reader is None:
        raise invalid(f"'{name}' is not offered here.", name, "unsupported_parameter")
    return reader
