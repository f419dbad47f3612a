"""Splitters: right parts, as early as is safe, the same however the text is cut, nothing lost."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulgur.errors import FulgurError
from fulgur.text.parts import CallDelta, CallEnd, CallStart, Malformed, Part, ReasoningDelta, TextDelta, merge
from fulgur.text.split import FORMATS, detect_format, marker_tokens, opens_reasoning, splitter_for

from .answers import ANSWERS, HERMES, QWEN, TOOLS, qwen
from .vocabularies import byte_level_backend, tokenizer_of

CASES = [(format, name) for format, answers in ANSWERS.items() for name in answers]


def split(format: str, *pieces: str, thinking: bool = False) -> list[Part]:
    splitter = splitter_for(format, tools=TOOLS, thinking=thinking)
    parts = [part for piece in pieces for part in splitter.feed(piece)]
    return merge([*parts, *splitter.finish()])


def call(name: str, arguments: str) -> list[Part]:
    return [CallStart(name), CallDelta(arguments), CallEnd()]


def check(parts: list[Part]) -> None:
    """What holds for every answer: calls one after the other, each ended once, arguments of ended ones JSON objects."""
    in_call = False
    arguments = ""
    for part in parts:
        if isinstance(part, CallStart):
            assert not in_call and part.name
            in_call, arguments = True, ""
        elif isinstance(part, CallDelta):
            assert in_call and part.text
            arguments += part.text
        elif isinstance(part, CallEnd):
            assert in_call
            assert isinstance(json.loads(arguments), dict)
            in_call = False
        elif isinstance(part, Malformed):
            assert part.in_call == in_call and part.text and part.reason
            in_call = False
        else:
            assert not in_call and part.text
    assert not in_call


@pytest.mark.parametrize(("format", "name"), CASES)
def test_every_cut_gives_the_same(format, name):
    text = ANSWERS[format][name]
    for thinking in (False, True):
        whole = split(format, text, thinking=thinking)
        check(whole)
        assert split(format, *text, thinking=thinking) == whole
        for cut in range(len(text) + 1):
            assert split(format, text[:cut], text[cut:], thinking=thinking) == whole
        generator = random.Random(name)
        for _ in range(20):
            cuts = sorted(generator.randrange(len(text) + 1) for _ in range(generator.randrange(2, 9)))
            pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            assert split(format, *pieces, thinking=thinking) == whole


fragments = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=edit>", "</function>", "<parameter=path>"),
        *("<parameter=line>", "</parameter>", "<|start|>assistant", "<|channel|>final", "<|channel|>analysis"),
        *("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "[", "]"),
        *("<|channel|>commentary to=functions.edit", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
        *(
            '{"name": "edit", "arguments": ',
            '{"path": "x"}',
            '{"a": [1',
            "}",
            "]",
            '"',
            "5",
            "null",
            "\n",
            " ",
            "<",
            "x",
        ),
    ]
)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(fragments, max_size=14), thinking=st.booleans(), seed=st.integers(0, 1000))
def test_any_mixture_of_markers(format, pieces, thinking, seed):
    text = "".join(pieces)
    whole = split(format, text, thinking=thinking)
    check(whole)
    assert split(format, *text, thinking=thinking) == whole
    cut = random.Random(seed).randrange(len(text) + 1)
    assert split(format, text[:cut], text[cut:], thinking=thinking) == whole


@pytest.mark.parametrize(("format", "name"), [case for case in CASES if case[0] != "harmony"])
def test_nothing_is_lost(format, name):
    """Every character that is not white space or a marker of a good call is in some part, in order."""
    parts = split(format, ANSWERS[format][name])
    given_back = "".join(part.text for part in parts if isinstance(part, TextDelta | ReasoningDelta | Malformed))
    rest = ANSWERS[format][name]
    for character in re.sub(r"\s", "", given_back):
        place = rest.find(character)
        assert place >= 0
        rest = rest[place + 1 :]
    if not any(isinstance(part, CallEnd) for part in parts):
        markers = r"<think>|</think>|^\[THINK\]" if format == "mistral" else "<think>|</think>"
        assert re.sub(rf"\s|{markers}", "", given_back) == re.sub(rf"\s|{markers}", "", ANSWERS[format][name])


@pytest.mark.parametrize(
    ("format", "name", "parts"),
    [
        ("plain", "text", [TextDelta("Just text, with < and </ and <thin air>.\n")]),
        ("plain", "blank", [TextDelta(" \n ")]),
        ("plain", "reasoning", [ReasoningDelta("First this.\n\nThen </thin that."), TextDelta("The answer.\n")]),
        ("plain", "empty reasoning", [TextDelta("Text")]),
        ("plain", "talks about it", [TextDelta("The tag <think> opens reasoning</think>.")]),
        ("hermes", "one", call("edit", '{"path": "a.py", "line": 3}')),
        (
            "hermes",
            "text and two",
            [
                TextDelta("I look."),
                *call("edit", '{"a": [1, {"b": null}], "c": "}{"}'),
                *call("list", "{}"),
                TextDelta("Done.\n"),
            ],
        ),
        ("hermes", "arguments first", call("edit", '{"path": "a"}')),
        (
            "hermes",
            "call at the end of open reasoning",
            [ReasoningDelta("I look, with <tool_call> of course."), *call("list", "{}"), *call("edit", "{}")],
        ),
        (
            "hermes",
            "call in the middle of open reasoning",
            [ReasoningDelta('Say <tool_call>{"name": "list"}</tool_call> and go on')],
        ),
        ("hermes", "call cut off in open reasoning", [ReasoningDelta('Hm. <tool_call>{"name": "li')]),
        (
            "qwen3-coder",
            "call at the end of open reasoning",
            [ReasoningDelta("I look: <function=x> is one."), *call("edit", '{"path": "a"}')],
        ),
        ("hermes", "parameters", call("edit", '{"path": "a"}')),
        ("hermes", "no arguments", call("list", "{}")),
        ("hermes", "null arguments", call("list", "{}")),
        ("hermes", "arguments in a string", call("edit", '{"path": "a"}')),
        ("hermes", "marker inside", [*call("edit", '{"path": "</tool_call><tool_call>"}'), TextDelta("ok")]),
        ("hermes", "bare line break", call("edit", '{"path": "a\\nb\\tc"}')),
        ("hermes", "not closed", [TextDelta("x"), *call("list", "{}")]),
        ("hermes", "next without close", [*call("list", "{}"), *call("edit", "{}")]),
        (
            "hermes",
            "one brace too many",
            [*call("list", "{}"), Malformed("}", "text after the end of a call"), TextDelta("Text")],
        ),
        (
            "hermes",
            "broken arguments",
            [
                TextDelta("a"),
                CallStart("edit"),
                CallDelta('{"path": '),
                Malformed(HERMES["broken arguments"][2:-2], "unexpected 'o' where a value was expected", True),
                TextDelta("b"),
            ],
        ),
        (
            "hermes",
            "broken before another",
            [
                Malformed('<tool_call>{"name": edit} ', "unexpected 'e' where a value was expected"),
                *call("list", "{}"),
            ],
        ),
        ("hermes", "no name", [Malformed(HERMES["no name"], "the call has no name")]),
        ("hermes", "cut off in the marker", [TextDelta("text <tool_ca")]),
        ("qwen3-coder", "one", call("edit", '{"path": "a.py", "line": 3}')),
        (
            "qwen3-coder",
            "types",
            call("edit", '{"all": true, "options": {"a": [1]}, "note": null, "line": "no number"}'),
        ),
        ("qwen3-coder", "unknown parameter", call("edit", '{"unheard": "5"}')),
        (
            "qwen3-coder",
            "lines kept",
            call("edit", json.dumps({"path": '\n  two "lines"\\\n\n\tindented\n'})),
        ),
        ("qwen3-coder", "empty value", [*call("edit", '{"path": ""}'), *call("edit", '{"path": ""}')]),
        (
            "qwen3-coder",
            "value talks about markers",
            call("edit", json.dumps({"path": "a </parameter> b\n</parameter>c </function> <parameter=x>"})),
        ),
        ("qwen3-coder", "inline", call("edit", '{"path": "a", "line": 1}')),
        ("qwen3-coder", "no outer marker", [TextDelta("Text"), *call("edit", '{"path": "a"}'), TextDelta("more")]),
        ("qwen3-coder", "function not closed", [*call("edit", '{"path": "a"}'), TextDelta("x")]),
        ("qwen3-coder", "parameter not closed", call("edit", '{"path": "a"}')),
        (
            "qwen3-coder",
            "json instead",
            [Malformed(QWEN["json instead"][:-4], "<function= is missing"), TextDelta("rest")],
        ),
        (
            "qwen3-coder",
            "cut off in a number",
            [CallStart("edit"), Malformed(QWEN["cut off in a number"], "the answer ended inside the call", True)],
        ),
        ("qwen3-coder", "cut off after the function", [*call("edit", '{"path": "a"}'), TextDelta("</tool")]),
        ("harmony", "analysis and final", [ReasoningDelta("Think <hard>."), TextDelta("Answer <|no marker|>\n")]),
        (
            "harmony",
            "call",
            [ReasoningDelta("I read."), *call("edit", '{"path": "a.py", "line": [1, 2.5e3, true]}')],
        ),
        ("harmony", "recipient in the role", call("edit", '{"path": "<|end|>"}')),
        ("harmony", "built-in tool", call("browser.search", "{}")),
        ("harmony", "preamble, two calls", [TextDelta("I will."), *call("a", "{}"), *call("b", '{"x": 1}')]),
        ("harmony", "two of a kind", [TextDelta("One.\n\nTwo.")]),
        ("harmony", "channel without end", [ReasoningDelta("Hm."), TextDelta("Ok.")]),
        ("harmony", "call without end", call("a", '{"x": "y"}')),
        ("harmony", "no arguments", [*call("a", "{}"), TextDelta("x")]),
        ("harmony", "no arguments, cut", call("a", "{}")),
        ("harmony", "plain text", [TextDelta("No markers at all, <|but almost.")]),
        (
            "harmony",
            "broken arguments",
            [
                CallStart("a"),
                CallDelta("{"),
                Malformed(
                    "<|channel|>commentary to=functions.a<|message|>{oops}",
                    "unexpected 'o' where a key or '}' was expected",
                    True,
                ),
                TextDelta("x"),
            ],
        ),
        ("harmony", "surplus", [*call("a", "{}"), Malformed("}", "text after the end of a call")]),
    ],
)
def test_parts(format, name, parts):
    assert split(format, ANSWERS[format][name]) == merge(parts)


def test_the_prompt_may_open_the_reasoning():
    for format in ("plain", "hermes", "qwen3-coder"):
        assert split(format, "\nHm.\n</think>\n\nYes.", thinking=True) == [ReasoningDelta("Hm."), TextDelta("Yes.")]
        assert split(format, "<think>Hm.</think>Yes.", thinking=True) == [ReasoningDelta("Hm."), TextDelta("Yes.")]
    assert opens_reasoning("<|im_start|>assistant\n<think>\n") and not opens_reasoning("<think></think>\n")


def test_text_is_held_only_for_a_marker():
    for format in FORMATS:
        splitter = splitter_for(format)
        assert splitter.feed("Hello, a") == [TextDelta("Hello, a")]
        assert splitter.feed(" < b") == [TextDelta(" < b")]
    splitter = splitter_for("hermes")
    assert splitter.feed("x <tool") == [TextDelta("x")]
    assert splitter.feed("box>") == [TextDelta(" <toolbox>")]


def test_arguments_stream_before_the_call_is_complete():
    splitter = splitter_for("hermes")
    assert splitter.feed('<tool_call>{"name": "edit", "argu') == [CallStart("edit")]
    assert splitter.feed('ments": {"path": "a.') == [CallDelta('{"path": "a.')]
    assert splitter.feed('py"}}') == [CallDelta('py"}'), CallEnd()]
    splitter = splitter_for("qwen3-coder")
    assert splitter.feed("<tool_call>\n<function=edit>") == [CallStart("edit")]
    assert merge(splitter.feed('<parameter=path>\nsay "hi')) == [CallDelta('{"path": "say \\"hi')]
    assert merge(splitter.feed(" there\n")) == [CallDelta(" there")]
    splitter = splitter_for("harmony")
    assert merge(splitter.feed('<|channel|>commentary to=functions.a<|message|>{"x": "y')) == [
        CallStart("a"),
        CallDelta('{"x": "y'),
    ]


@settings(max_examples=200, deadline=None)
@given(value=st.text(), other=st.integers())
def test_any_text_survives_as_an_argument(value, other):
    """Hermes carries it as JSON; Qwen3-Coder bare, where only its own end markers could be mistaken."""
    arguments = json.dumps({"path": value, "line": other}, ensure_ascii=False)
    answer = f'<tool_call>{{"name": "edit", "arguments": {arguments}}}</tool_call>'
    assert split("hermes", answer) == call("edit", arguments)
    bare = split("qwen3-coder", *qwen("edit", ("path", value), ("line", str(other))))
    assert json.loads(bare[1].text) == {"path": value, "line": other}  # type: ignore[union-attr]


def test_format_of_a_template():
    assert detect_format("{{ '<|im_start|>' }}") == "plain"
    assert detect_format('<tool_call>\n{"name": ..}') == "hermes"
    assert detect_format("<tool_call>\n<function=x>") == "qwen3-coder"
    assert detect_format("<|start|>assistant<|channel|>final") == "harmony"
    with pytest.raises(FulgurError, match="Unknown tool-call format 'xml'"):
        splitter_for("xml")


def test_markers_that_decoding_must_keep():
    names = ["<|eos|>", "<tool_call>", "<think>", "<|channel|>", "<|message|>"]
    tokenizer = tokenizer_of(byte_level_backend(names), eos="<|eos|>")
    shown = {format: {names[token] for token in marker_tokens(format, tokenizer)} for format in FORMATS}
    assert shown["plain"] == {"<think>"}
    assert shown["hermes"] == shown["qwen3-coder"] == {"<think>", "<tool_call>"}
    assert shown["harmony"] == {"<|channel|>", "<|message|>"}


def test_mistral():
    assert split("mistral", ANSWERS["mistral"]["one"]) == call("edit", '{"path": "a.py", "line": 3}')
    first, said, *calls = split("mistral", ANSWERS["mistral"]["reasoning, text and two"])
    assert first == ReasoningDelta("First this, [TOOL_CALLS] not meant.") and said == TextDelta("I look.")
    assert [part.name for part in calls if isinstance(part, CallStart)] == ["edit", "list"]
    assert split("mistral", ANSWERS["mistral"]["list"]) == call("edit", '{"path": "a"}') + call("list", "{}")
    assert split("mistral", ANSWERS["mistral"]["an id"]) == call("edit", '{"path": "a"}')
    broken, *rest = split("mistral", ANSWERS["mistral"]["no arguments before another"])
    assert isinstance(broken, Malformed) and rest == call("list", "{}")
    assert detect_format("{{ '[TOOL_CALLS]' + call.name + '[ARGS]' }}") == "mistral"
    assert opens_reasoning("[INST]x[/INST][THINK]")
