"""Argument values that arrive as bare text, turned into JSON as the tool's schema says."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from fulgur.text.json_scan import to_json

_ALL = frozenset(["string", "integer", "number", "boolean", "object", "array", "null"])


class ParameterTypes:
    """What types each parameter of each tool may have. Tools are in the form of the Responses or the chat API."""

    def __init__(self, tools: Sequence[dict[str, Any]] | None = None) -> None:
        self._schemas: dict[str, dict[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function", tool)
            if isinstance(function.get("parameters"), dict):
                self._schemas[function.get("name", "")] = function["parameters"]

    def of(self, function: str, parameter: str) -> frozenset[str]:
        """The types allowed; text where nothing is known."""
        root = self._schemas.get(function, {})
        schema = root.get("properties", {}).get(parameter)
        return _types(schema, root, depth=0) if isinstance(schema, dict) else frozenset(["string"])


def value_json(text: str, types: frozenset[str]) -> str:
    """JSON of a value written as text; what does not fit its types is passed on as a string for the tool to judge."""
    bare = text.strip()
    if "null" in types and bare.lower() in ("null", "none"):
        return "null"
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower()
    for read in (_from_json, _from_python):
        try:
            value = read(bare)
            if "integer" in types and isinstance(value, float) and value.is_integer():
                value = int(value)
            if _type_name(value) & types:
                return to_json(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, OverflowError):
            continue
    return to_json(text)


def _types(schema: dict[str, Any], root: dict[str, Any], depth: int) -> frozenset[str]:
    """The types a schema lets through, as far as `type`, `enum`, `const`, unions and local references say."""
    if depth > 8:
        return _ALL
    if isinstance(reference := schema.get("$ref"), str):
        target = _resolve(reference, root)
        return _types(target, root, depth + 1) if target is not None else _ALL
    if isinstance(kind := schema.get("type"), str):
        return frozenset([kind])
    if isinstance(kind, list):
        return frozenset(kind)
    if "const" in schema:
        return _names([schema["const"]])
    if isinstance(values := schema.get("enum"), list):
        return _names(values)
    for union in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(union), list):
            return frozenset().union(*(_types(option, root, depth + 1) for option in options))
    if isinstance(options := schema.get("allOf"), list):
        return _ALL.intersection(*(_types(option, root, depth + 1) for option in options))
    return _ALL


def _resolve(reference: str, root: dict[str, Any]) -> dict[str, Any] | None:
    target: Any = root
    for step in reference.removeprefix("#/").split("/"):
        target = target.get(step) if isinstance(target, dict) else None
    return target if isinstance(target, dict) else None


def _names(values: Iterable[Any]) -> frozenset[str]:
    return frozenset().union(*(_type_name(value) for value in values))


def _type_name(value: Any) -> frozenset[str]:
    """JSON schema's names for a value's type; an integer is a number too, and an unknown type is none."""
    if isinstance(value, bool):
        return frozenset(["boolean"])
    if isinstance(value, int):
        return frozenset(["integer", "number"])
    names = {str: "string", float: "number", dict: "object", list: "array", type(None): "null"}
    return frozenset([names[type(value)]]) if type(value) in names else frozenset()


def _from_json(text: str) -> Any:
    value = json.loads(text, strict=False, parse_constant=_no_constant)
    if isinstance(value, str):  # quotes around a text are part of it
        raise ValueError
    return value


def _from_python(text: str) -> Any:
    """Models that think in Python write `{'a': True}`."""
    value = ast.literal_eval(text)
    if isinstance(value, str):
        raise ValueError
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
