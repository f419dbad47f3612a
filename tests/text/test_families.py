"""Each family's chat format there and back: what its template writes for a turn of the assistant is what its splitter
reads. The templates are short ones of the same form as those that ship with the models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fulgur.text.parts import CallDelta, CallEnd, CallStart, Part, ReasoningDelta, TextDelta, merge
from fulgur.text.split import call_opening, detect_format, opens_reasoning, reasoning_end, splitter_for
from fulgur.text.template import ChatTemplate

THINKING = """\
{%- macro thought(m, keep) %}{% if m.reasoning_content and keep %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{% endmacro %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
{{ thought(m, preserve_thinking or loop.index0 > ns.last) }}{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first else '' }}CALL{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
GENERATION{% endif %}"""
HERMES_CALL = """<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>"""
CODER_CALL = """<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>"""
OPEN = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
HARMONY = """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.reasoning_content %}<|start|>assistant<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>{% endif %}
{%- set channel = 'commentary' if m.tool_calls else 'final' %}
{%- if m.content %}<|start|>assistant<|channel|>{{ channel }}<|message|>{{ m.content }}<|end|>{% endif %}
{%- for call in m.tool_calls or [] %}<|start|>assistant to=functions.{{ call.function.name }}
{{- '<|channel|>commentary json<|message|>' }}{{ call.function.arguments | tojson }}<|call|>{% endfor %}
{%- elif m.role == 'tool' %}<|start|>functions.x to=assistant<|channel|>commentary<|message|>{{ m.content }}<|end|>
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
MISTRAL = """\
{%- for m in messages %}
{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]
{%- else %}
{%- if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]
{{- call.function.arguments | tojson }}{% endfor %}</s>
{%- endif %}
{%- endfor %}"""

FAMILIES = {  # template; the markers that end an answer, which no splitter sees
    "qwen3": (THINKING.replace("CALL", HERMES_CALL).replace("GENERATION", ""), ("<|im_end|>\n",)),
    "qwen3.5": (THINKING.replace("CALL", CODER_CALL).replace("GENERATION", OPEN), ("<|im_end|>\n",)),
    "coder-next": (THINKING.replace("CALL", CODER_CALL).replace("GENERATION", ""), ("<|im_end|>\n",)),
    "gpt-oss": (HARMONY, ("<|call|>", "<|end|>")),
    "mistral": (MISTRAL, ("</s>",)),
}
TOOLS = [
    {
        "type": "function",
        "name": "edit",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "line": {"type": "integer"}, "how": {"type": "object"}},
        },
    },
    {"type": "function", "name": "list", "parameters": {"type": "object", "properties": {}}},
]
EDIT = ("edit", {"path": 'a "b".py\n  two lines', "line": 3, "how": {"all": [1, None, True]}})
LIST = ("list", dict[str, Any]())


def message(text: str = "", thought: str = "", *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"type": "function", "id": "c", "function": {"name": n, "arguments": json.dumps(a)}} for n, a in calls]
    return {"role": "assistant", "content": text, "reasoning_content": thought, "tool_calls": made}


TURNS = {
    "text": message("Two\n\nparagraphs with {braces} and <tags>."),
    "thinking": message("Yes.", "First this.\n\nThen that."),
    "call": message("", "", EDIT),
    "call without arguments": message("", "", LIST),
    "text and call": message("I look.", "", EDIT),
    "parallel calls": message("", "", EDIT, LIST, EDIT),
    "all of it": message("I look.", "Hm, both.", LIST, EDIT),
}


def read(format: str, text: str, *, thinking: bool) -> list[Part]:
    splitter = splitter_for(format, tools=TOOLS, thinking=thinking)
    return merge([part for character in text for part in splitter.feed(character)] + splitter.finish())


def parts_of(turn: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    if turn["reasoning_content"]:
        parts.append(ReasoningDelta(turn["reasoning_content"]))
    if turn["content"]:
        parts.append(TextDelta(turn["content"]))
    for call in turn["tool_calls"]:
        parts += [CallStart(call["function"]["name"]), CallDelta(call["function"]["arguments"]), CallEnd()]
    return parts


def parsed(parts: list[Part]) -> list[Any]:
    return [json.loads(part.text) if isinstance(part, CallDelta) else part for part in parts]


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_template_writes_the_splitter_reads(family: str, turn: str) -> None:
    source, ends = FAMILIES[family]
    template, format = ChatTemplate(source), detect_format(source)
    asked = [{"role": "user", "content": "Go."}]
    said = TURNS[turn]
    prompt = template.render(asked, tools=TOOLS)
    whole = template.render([*asked, said], tools=TOOLS, add_generation_prompt=False)
    thinking = opens_reasoning(prompt)
    if thinking and not said["reasoning_content"]:  # it was told not to think
        prompt, thinking = template.render(asked, tools=TOOLS, enable_thinking=False), False
        assert prompt.endswith("<think>\n\n</think>\n\n")
        prompt = prompt.removesuffix("<think>\n\n</think>\n\n")
    assert whole.startswith(prompt)
    answer = whole[len(prompt) :]
    end = next(end for end in ends if answer.endswith(end))
    assert parsed(read(format, answer.removesuffix(end), thinking=thinking)) == parsed(parts_of(said))


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5"])
def test_thinking_is_kept_within_a_turn_and_dropped_or_preserved_after_it(family: str) -> None:
    template = ChatTemplate(FAMILIES[family][0])
    turn = [{"role": "user", "content": "Go."}, TURNS["all of it"], {"role": "tool", "content": "a.py"}]
    within = template.render(turn)
    later = [*turn, message("Done.", "Well."), {"role": "user", "content": "Next."}]
    dropped, preserved = template.render(later), template.render(later, preserve_thinking=True)
    assert "Hm, both." in within and "Hm, both." not in dropped and "Well." not in dropped
    # Preserved, a prompt only grows, and all of the last one is cached.
    grown = template.render(turn, add_generation_prompt=False)
    assert preserved.startswith(grown) and not dropped.startswith(grown)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_forced_is_read_as_one(family: str) -> None:
    """The grammar's JSON behind the opening that is put into the model's mouth."""
    source, _ = FAMILIES[family]
    format = detect_format(source)
    prompt = ChatTemplate(source).render([{"role": "user", "content": "Go."}], tools=TOOLS)
    reader = "hermes" if format == "qwen3-coder" else format  # JSON instead of bare values
    arguments = json.dumps(EDIT[1])
    answer = call_opening(format, "edit") + arguments + ("}" if reader == "hermes" else "")
    assert read(reader, answer, thinking=False) == [CallStart("edit"), CallDelta(arguments), CallEnd()]
    ended = prompt + reasoning_end(prompt)
    assert not opens_reasoning(ended) and (ended == prompt or ended.endswith("</think>\n\n"))
    assert reasoning_end("[INST]x[/INST][THINK]") == "[/THINK]"


@pytest.mark.parametrize(
    ("family", "answer", "expected"),
    [
        ("qwen3.5", "Hm.</think>Yes.", [ReasoningDelta("Hm."), TextDelta("Yes.")]),
        ("qwen3.5", "Hm.   \n\n\n</think>\n \nYes.", [ReasoningDelta("Hm."), TextDelta("Yes.")]),
        ("qwen3.5", "\n</think>\n\nYes.", [TextDelta("Yes.")]),
        ("qwen3.5", "I list. <tool_call>\n<function=list>\n</function>\n</tool_call>", ["I list.", LIST]),
        ("qwen3.5", "I list.</think><tool_call><function=list></function>", ["I list.", LIST]),
        ("gpt-oss", " to=functions.list<|channel|>commentary<|message|>{}", ["", LIST]),
        ("gpt-oss", "<|channel|>commentary to=functions.list code<|message|>{}", ["", LIST]),
        ("gpt-oss", "<|channel|>analysis to=functions.list <|constrain|>json<|message|>{}", ["", LIST]),
        (
            "gpt-oss",
            "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>x",
            [TextDelta("x")],
        ),
        ("mistral", " [TOOL_CALLS] list [ARGS] {}", ["", LIST]),
    ],
)
def test_what_real_models_get_wrong(family: str, answer: str, expected: list[Any]) -> None:
    """White space, calls inside thinking, the recipient before the channel or in the wrong one, empty messages."""
    if expected[-1] is LIST:
        expected = [
            *([ReasoningDelta(expected[0])] if expected[0] else []),
            CallStart("list"),
            CallDelta("{}"),
            CallEnd(),
        ]
    format = detect_format(FAMILIES[family][0])
    assert read(format, answer, thinking=family == "qwen3.5") == expected
