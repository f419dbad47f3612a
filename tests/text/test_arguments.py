"""Bare text to typed values, as a tool's schema says."""

from __future__ import annotations

import json

import pytest

from fulgur.text.arguments import ParameterTypes, value_json

TOOL = {
    "type": "function",
    "name": "edit",
    "parameters": {
        "type": "object",
        "$defs": {"line": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}},
        "properties": {
            "path": {"type": "string"},
            "line": {"$ref": "#/$defs/line"},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "many": {"type": ["array", "null"]},
            "level": {"enum": [1, 2]},
            "mode": {"const": "fast"},
            "free": {},
            "both": {"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]},
            "loop": {"$ref": "#/$defs/loop"},
            "lost": {"$ref": "#/$defs/none"},
        },
    },
}
EVERY = {"string", "integer", "number", "boolean", "object", "array", "null"}


@pytest.mark.parametrize(
    ("parameter", "types"),
    [
        ("path", {"string"}),
        ("line", {"integer"}),
        ("maybe", {"integer", "null"}),
        ("many", {"array", "null"}),
        ("level", {"integer", "number"}),
        ("mode", {"string"}),
        ("free", EVERY),
        ("both", {"integer"}),
        ("loop", EVERY),
        ("lost", EVERY),
        ("unheard", {"string"}),
    ],
)
def test_types_of_a_parameter(parameter, types):
    assert ParameterTypes([TOOL]).of("edit", parameter) == types
    chat_form = {"type": "function", "function": {"name": "edit", "parameters": TOOL["parameters"]}}
    assert ParameterTypes([chat_form]).of("edit", parameter) == types
    assert ParameterTypes([TOOL]).of("other", parameter) == {"string"}


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"integer"}, 5),
        (" 5\n", {"integer"}, 5),
        ("5.0", {"integer"}, 5),
        ("5.5", {"integer"}, "5.5"),
        ("5", {"number"}, 5),
        ("-2.5e3", {"number"}, -2500.0),
        ("1e999", {"number"}, "1e999"),
        ("NaN", {"number"}, "NaN"),
        ("True", {"boolean"}, True),
        ("false", {"boolean"}, False),
        ("true", {"integer"}, "true"),
        ("null", {"integer", "null"}, None),
        ("None", {"string", "null"}, None),
        ("null", {"string", "integer"}, "null"),
        ('[1, "a"]', {"array"}, [1, "a"]),
        ("{'a': True, 'b': None}", {"object"}, {"a": True, "b": None}),
        ('{"a": "x\ny"}', {"object"}, {"a": "x\ny"}),
        ("{'a': {1, 2}}", {"object"}, "{'a': {1, 2}}"),
        ("[1, 2", {"array"}, "[1, 2"),
        ('{"a": 1}', {"array"}, '{"a": 1}'),
        ('"quoted"', {"string", "integer"}, '"quoted"'),
        ("plain", set(EVERY), "plain"),
        ("7", set(EVERY), 7),
        ("[" * 5000, {"array"}, "[" * 5000),
    ],
)
def test_values(text, types, value):
    result = json.loads(value_json(text, frozenset(types)))
    assert result == value and type(result) is type(value)
