"""Twenty turns of an agent, on a random hybrid with a drafting head: each prompt says how much of it was cached, and no
more is computed than what is new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import VOCAB, write_tokenizer
from drive import generate

from fulgur.backends.base import Conversation, Turn
from fulgur.backends.prompts import Prompts
from fulgur.engine.engine import Engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.states import BEFORE
from fulgur.kernels.cpu.native import Runtime
from fulgur.model.random import RandomSource, tiny_config
from fulgur.model.weights import assemble
from fulgur.protocol.items import Item, user_message
from fulgur.text.grammar import GrammarSpec
from fulgur.text.parts import CallDelta, ReasoningDelta, TextDelta, merge
from fulgur.text.split import opens_reasoning, splitter_for
from fulgur.text.tokenizer import Tokenizer

TEMPLATE = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}<|turn|>{{ m.role }}
{% if m.reasoning_content and (preserve_thinking or loop.index0 > ns.last) %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>
{"name": "look", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|eos|>
{% endfor %}
{%- if add_generation_prompt %}<|turn|>assistant
<think>
{% endif %}"""
THOUGHT = "[a-z]{30,40}\n</think>\n\n"
CALL = '<tool_call>\n\\{"name": "look", "arguments": \\{"n": [1-9]{4}\\}\\}\n</tool_call>'
BLOCK = 64


class Session:
    """A scripted user and tool; what the model says is random, in the form that the grammar gives it."""

    def __init__(self, folder: Path, *, preserve: bool) -> None:
        write_tokenizer(folder)
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eos|>", "chat_template": TEMPLATE}))
        self.tokenizer = Tokenizer.from_folder(folder)
        config = tiny_config("qwen3_5", vocab_size=VOCAB, max_context=16384, eos_ids=(256,), draft_vocab=VOCAB)
        self.weights = assemble(RandomSource(config, 4), bits=8, group=32)
        self.engine = self.cold()
        self.prompts = Prompts(self.tokenizer, "m")
        self.conversation = Conversation([user_message("You have a tool.")])
        self.values = {"preserve_thinking": preserve}
        self.rows: list[tuple[int, int, int]] = []  # tokens of a prompt, those cached, those known from before
        self.seen: list[list[int]] = []

    def cold(self) -> Engine:
        return Engine(Runtime(self.weights, kv_blocks=300, threads=1, snapshots=16), self.tokenizer)

    def request(self, tokens: list[int], form: str) -> GenerateRequest:
        return GenerateRequest(tokens, SamplingParams(max_tokens=200, grammar=GrammarSpec("regex", form)))

    def answer(self, form: str) -> list[Item]:
        prompt = self.prompts.of(Turn(self.conversation, template_values=self.values), **self.values)
        said = generate(self.engine, self.request(prompt.tokens, form))
        assert said.reason == "stop" and said.finished is not None
        usage = said.finished.usage
        known = max((common(prompt.tokens, before) for before in self.seen), default=0)
        self.rows.append((usage.prompt_tokens, usage.cached_tokens, known))
        self.seen.append(prompt.tokens + said.tokens[:-1])
        self.prompts.keep(self.conversation, prompt, said.text, said.tokens[:-1])
        self.last = prompt.tokens, form, said.tokens
        splitter = splitter_for("hermes", thinking=opens_reasoning(prompt.text))
        items: list[Item] = []
        for part in merge(splitter.feed(said.text) + splitter.finish()):
            match part:
                case ReasoningDelta():
                    items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": part.text}]})
                case TextDelta():
                    items.append({"type": "message", "role": "assistant", "content": part.text})
                case CallDelta():
                    called: Item = {"type": "function_call", "call_id": "c", "name": "look", "arguments": part.text}
                    items.append(called)
        assert len(items) == 2
        return items

    def turn(self, number: int, calls: int) -> None:
        self.add([user_message(f"Task {number}: look at file_{number}.py and say what it does, please. " * 2)])
        for _ in range(calls):
            self.add(self.answer(THOUGHT + CALL))
            output = "".join(f"line {i} of {number}\n" for i in range(3))
            self.add([{"type": "function_call_output", "call_id": "c", "output": output}])
        self.add(self.answer(THOUGHT + "[a-z]{20,40}"))

    def add(self, items: list[Any]) -> None:
        self.conversation = self.conversation.extend(items)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("preserve", [False, True], ids=["dropped", "preserved"])
def test_twenty_turns(preserve: bool, tmp_path: Path) -> None:
    session = Session(tmp_path, preserve=preserve)
    firsts = []
    for number in range(20):
        firsts.append(len(session.rows))
        session.turn(number, calls=number % 3)
    assert len(session.rows) == 39 and session.rows[-1][0] > 4000
    for place, (prompt, cached, known) in enumerate(session.rows):
        if preserve or place not in firsts:  # it goes on from the end of the last answer
            assert cached >= known - 1, (place, prompt, cached, known)
        else:  # the last turn's thinking is gone: back to a capture point shortly before it
            assert cached >= known - BEFORE - BLOCK, (place, prompt, cached, known)
    tokens, form, said = session.last
    assert generate(session.cold(), session.request(tokens, form)).tokens == said
    total, cached = sum(row[0] for row in session.rows), sum(row[1] for row in session.rows)
    assert cached > (0.96 if preserve else 0.93) * total
