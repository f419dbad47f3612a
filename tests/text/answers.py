"""Answers as models write them, good and broken, for each format."""

from __future__ import annotations

TOOLS = [
    {
        "type": "function",
        "name": "edit",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "line": {"type": "integer"},
                "all": {"type": "boolean"},
                "options": {"type": "object"},
                "note": {"type": ["string", "null"]},
            },
        },
    },
    {"type": "function", "name": "list", "parameters": {"type": "object", "properties": {}}},
]

PLAIN = {
    "text": "Just text, with < and </ and <thin air>.\n",
    "blank": " \n ",
    "nothing": "",
    "reasoning": "<think>\nFirst this.\n\nThen </thin that.\n</think>\n\nThe answer.\n",
    "space before reasoning": "\n <think>a</think>b",
    "empty reasoning": "<think>\n\n</think>\n\nText",
    "open reasoning": "<think>never ends </think",
    "talks about it": "The tag <think> opens reasoning</think>.",
}

HERMES = {
    **PLAIN,
    "one": '<tool_call>\n{"name": "edit", "arguments": {"path": "a.py", "line": 3}}\n</tool_call>',
    "text and two": (
        'I look.\n\n<tool_call>\n{"name": "edit", "arguments": {"a": [1, {"b": null}], "c": "}{"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>\nDone.\n'
    ),
    "reasoning with a call in it": (
        '<think>I could <tool_call>{"name": "x"}</tool_call>.</think>\n'
        '<tool_call>{"name":"edit","arguments":{"path":"ü\\u00e9\\n"}}</tool_call>'
    ),
    "call at the end of open reasoning": (
        "<think>\nI look, with <tool_call> of course.\n"
        '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>\n<tool_call>{"name": "edit"}</tool_call>\n'
    ),
    "call in the middle of open reasoning": '<think>Say <tool_call>{"name": "list"}</tool_call> and go on',
    "call cut off in open reasoning": '<think>Hm. <tool_call>{"name": "li',
    "arguments first": '<tool_call>{"arguments": {"path": "a"}, "id": 7, "name": "edit"}</tool_call>',
    "parameters": '<tool_call>{"name": "edit", "parameters": {"path": "a"}}</tool_call>',
    "no arguments": '<tool_call>{"name": "list"}</tool_call>',
    "null arguments": '<tool_call>{"name": "list", "arguments": null}</tool_call>',
    "arguments in a string": '<tool_call>{"name": "edit", "arguments": "{\\"path\\": \\"a\\"}"}</tool_call>',
    "marker inside": '<tool_call>{"name": "edit", "arguments": {"path": "</tool_call><tool_call>"}}</tool_call>ok',
    "bare line break": '<tool_call>{"name": "edit", "arguments": {"path": "a\nb\tc"}}</tool_call>',
    "not closed": 'x <tool_call>{"name": "list", "arguments": {}}',
    "next without close": '<tool_call>{"name": "list"}\n<tool_call>{"name": "edit", "arguments": {}}</tool_call>',
    "one brace too many": '<tool_call>{"name": "list", "arguments": {}}}\n</tool_call>\nText',
    "surplus without end": '<tool_call>{"name": "list"} and then </tool',
    "broken arguments": 'a <tool_call>{"name": "edit", "arguments": {"path": oops}}</tool_call> b',
    "broken before another": '<tool_call>{"name": edit} <tool_call>{"name": "list"}</tool_call>',
    "cut off": '<tool_call>{"name": "edit", "arguments": {"path": "a.p',
    "cut off in the marker": "text <tool_ca",
    "no object": "<tool_call>edit(path)</tool_call>rest",
    "no name": '<tool_call>{"arguments": {"a": 1}}</tool_call>',
    "name is a number": '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
    "empty name": '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    "arguments are a list": '<tool_call>{"name": "edit", "arguments": [1]}</tool_call>',
    "arguments are a number": '<tool_call>{"name": "edit", "arguments": 1 }</tool_call>',
    "arguments are a text": '<tool_call>{"name": "edit", "arguments": "no"}</tool_call>',
    "twice": '<tool_call>{"name": "edit", "arguments": {}, "arguments": {}}</tool_call>',
    "empty": "<tool_call></tool_call>",
    "two names": '<tool_call>{"name": "a", "name": "b"}</tool_call>',
}


def qwen(function: str, *parameters: tuple[str, str]) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={function}>\n{body}</function>\n</tool_call>"


QWEN = {
    **PLAIN,
    "one": qwen("edit", ("path", "a.py"), ("line", "3")),
    "text and two": f"I look.\n\n{qwen('edit', ('path', 'x'))}\n{qwen('list')}\nDone.",
    "types": qwen("edit", ("all", "True"), ("options", '{"a": [1]}'), ("note", "null"), ("line", "no number")),
    "unknown parameter": qwen("edit", ("unheard", "5")),
    "lines kept": qwen("edit", ("path", '\n  two "lines"\\\n\n\tindented\n')),
    "empty value": qwen("edit", ("path", "")) + qwen("edit", ("path", "")).replace("\n", ""),
    "value talks about markers": qwen("edit", ("path", "a </parameter> b\n</parameter>c </function> <parameter=x>")),
    "inline": qwen("edit", ("path", "a"), ("line", "1")).replace("\n", ""),
    "no outer marker": "Text <function=edit>\n<parameter=path>\na\n</parameter>\n</function> more",
    "two in one": "<tool_call><function=list></function><function=list></function></tool_call>after",
    "function not closed": "<tool_call><function=edit><parameter=path>a</parameter></tool_call>x",
    "parameter not closed": "<tool_call>\n<function=edit>\n<parameter=path>\na\n</function>\n</tool_call>",
    "reasoning": "<think>hm </think>\n" + qwen("list"),
    "json instead": '<tool_call>{"name": "edit"}</tool_call>rest',
    "call at the end of open reasoning": "<think>\nI look: <function=x> is one.\n\n"
    + qwen("edit", ("path", "a"))
    + "\n",
    "call in the middle of open reasoning": "<think>Say " + qwen("list") + " and go on",
    "no name": "<tool_call><function=></function></tool_call>",
    "name over lines": "<tool_call><function=a\nb></function></tool_call>",
    "twice": qwen("edit", ("path", "a"), ("path", "b")),
    "stray text": "<tool_call><function=edit>oops<parameter=path>a</parameter></function></tool_call> tail",
    "cut off in a value": "<tool_call><function=edit><parameter=path>\nhalf a val\n</param",
    "cut off in a number": "<tool_call><function=edit><parameter=line>\n12",
    "cut off in a name": "<tool_call><function=ed",
    "cut off before the function": "<tool_call>\n",
    "cut off after a value": "<tool_call><function=edit><parameter=path>a</parameter>\n",
    "cut off after the function": "<tool_call><function=edit><parameter=path>a</parameter></function>\n</tool",
    "broken before another": "<tool_call><function=edit>oops" + qwen("list"),
}

HARMONY = {
    "final": "<|channel|>final<|message|>The answer.<|return|>",
    "analysis and final": (
        "<|channel|>analysis<|message|>Think <hard>.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Answer <|no marker|>\n<|return|>"
    ),
    "call": (
        "<|channel|>analysis<|message|>I read.<|end|><|start|>assistant<|channel|>commentary to=functions.edit "
        '<|constrain|>json<|message|>{"path": "a.py", "line": [1, 2.5e3, true]}<|call|>'
    ),
    "recipient in the role": ' to=functions.edit<|channel|>commentary json<|message|>{"path": "<|end|>"}<|call|>',
    "built-in tool": "<|channel|>commentary to=browser.search<|message|>{}<|call|>",
    "preamble, two calls": (
        "<|channel|>commentary<|message|>I will.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.a<|message|>{}<|call|>"
        '<|start|>assistant<|channel|>commentary to=functions.b<|message|> {"x": 1} <|call|>'
    ),
    "two of a kind": (
        "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>"
    ),
    "no end marker": "<|channel|>final<|message|>All of it",
    "channel without end": "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Ok.",
    "call without end": '<|channel|>commentary to=functions.a<|message|>{"x": "y"}',
    "no arguments": "<|channel|>commentary to=functions.a<|message|><|call|><|start|>assistant<|message|>x<|end|>",
    "no arguments, cut": "<|channel|>commentary to=functions.a<|message|> ",
    "plain text": "No markers at all, <|but almost.",
    "text then marker": "Some text<|end|><|start|>assistant<|channel|>final<|message|>x<|end|><|end|>",
    "nothing": "",
    "broken arguments": "<|channel|>commentary to=functions.a<|message|>{oops}<|call|><|channel|>final<|message|>x",
    "no name": "<|channel|>commentary to=functions.<|message|>{}<|call|>",
    "no object": "<|channel|>commentary to=python<|message|>print(1)<|call|>",
    "surplus": "<|channel|>commentary to=functions.a<|message|>{}}<|call|>",
    "cut off in arguments": '<|channel|>commentary to=functions.a<|message|>{"path": "a',
    "cut off in a header": "<|channel|>commentary to=func",
    "header without message": "<|channel|>final<|end|><|start|>assistant<|channel|>final<|message|>x",
    "cut off in a marker": "<|channel|>final<|message|>x<|en",
}

MISTRAL = {
    "text": "Just text, with [ and [TOOL and [/THINK].\n",
    "nothing": "",
    "one": '[TOOL_CALLS]edit[ARGS]{"path": "a.py", "line": 3}',
    "reasoning, text and two": (
        "[THINK]\nFirst this, [TOOL_CALLS] not meant.\n[/THINK]\nI look.\n"
        '[TOOL_CALLS]edit[ARGS]{"a": [1, {"b": null}], "c": "}{[TOOL_CALLS]"}[TOOL_CALLS]list[ARGS]{}'
    ),
    "text behind": "[TOOL_CALLS]list[ARGS]{} Done.",
    "spaces": '[TOOL_CALLS] edit [ARGS] {"path": "ü\\u00e9\n"}',
    "an id": '[TOOL_CALLS]edit[CALL_ID]abc123[ARGS]{"path": "a"}',
    "without the second marker": '[TOOL_CALLS]edit{"path": "a"}',
    "list": '[TOOL_CALLS][{"name": "edit", "arguments": {"path": "a"}}, {"name": "list"}]',
    "list with text behind": '[TOOL_CALLS] [{"name": "list", "arguments": {}}] ok',
    "empty list": "[TOOL_CALLS][]",
    "open list": '[TOOL_CALLS][{"name": "list", "arguments": {}}, ',
    "no name": '[TOOL_CALLS][ARGS]{"path": "a"}',
    "no arguments": "[TOOL_CALLS]list",
    "no arguments before another": "[TOOL_CALLS]list[TOOL_CALLS]list[ARGS]{}",
    "broken arguments": "a [TOOL_CALLS]edit[ARGS]{path: oops}[TOOL_CALLS]list[ARGS]{}",
    "cut off": '[TOOL_CALLS]edit[ARGS]{"path": "a.p',
    "cut off in the marker": "text [TOOL_CA",
    "open reasoning": "[THINK]never ends [/THIN",
}

ANSWERS = {"plain": PLAIN, "hermes": HERMES, "qwen3-coder": QWEN, "harmony": HARMONY, "mistral": MISTRAL}
