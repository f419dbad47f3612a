"""The incremental JSON reader agrees with the json module."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulgur.text.json_scan import JsonError, JsonScanner, to_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
containers = st.lists(values) | st.dictionaries(st.text(), values)


def scan(text: str) -> tuple[str, str]:
    """What was taken as one value, mended, and what is left."""
    scanner, taken, place = JsonScanner(), "", 0
    while place < len(text) and not scanner.done:
        end = scanner.run_end(text, place)
        if end > place:
            taken += text[place:end]
        else:
            end = place + 1
            taken += scanner.step(text[place])
        place = end
    if not scanner.done:
        raise JsonError("unfinished")
    return taken, text[place:]


@settings(deadline=None)
@given(value=containers, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans(), rest=st.text())
def test_takes_exactly_one_value(value, indent, ascii_only, rest):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert scan(text + rest) == (text, rest)


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_agrees_with_json_about_validity(data):
    """Valid documents with one character changed, dropped or put in."""
    text = json.dumps(data.draw(containers))
    place = data.draw(st.integers(0, len(text)))
    width = data.draw(st.integers(0, 1))
    text = text[:place] + data.draw(st.sampled_from([*'{}[],:"\\0129.-+eEtrufalsn /u\n', ""])) + text[place + width :]
    try:
        value = json.loads(text, strict=False, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        value = None
    try:
        taken, rest = scan(text)
    except JsonError:
        assert not isinstance(value, list | dict)
        return
    if rest.strip():
        assert value is None
        json.loads(taken)
    else:
        assert json.loads(taken) == value


def test_bare_control_characters_in_strings_are_escaped():
    taken, rest = scan('{"a": "x\n\ty\x01"}')
    assert json.loads(taken) == {"a": "x\n\ty\x01"} and rest == ""


@pytest.mark.parametrize("text", ['{"a" 1}', "{1: 2}", "[1,]", '{"a": 01}', "[1.]", '["\\x"]', '["\\u12g4"]', "[nul1]"])
def test_mistakes_are_found(text):
    with pytest.raises(JsonError):
        scan(text)


def test_to_json():
    assert to_json({"a": "ü東"}) == '{"a": "ü東"}'
    assert to_json("\ud800") == '"\\ud800"'
    for impossible in (float("nan"), float("inf"), {1, 2}, b"x"):
        with pytest.raises(ValueError):
            to_json(impossible)
