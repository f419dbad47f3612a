"""What each door takes: nothing that a client asks for is dropped without a word."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from serving import backend_of, script, serving, text
from test_http import asking

from fulgur.backends.base import Capabilities, Completion, Sampling
from fulgur.protocol import request as bodies
from fulgur.server.doors.answer import numbered
from fulgur.server.fields import DOORS

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES = {"model": "m", "input": "hi"}
COMPLETIONS = {"model": "m", "prompt": "hi"}
BASES = {"/chat/completions": CHAT, "/responses": RESPONSES, "/completions": COMPLETIONS}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


@pytest.mark.parametrize(
    ("path", "wrong", "param"),
    [
        *(
            ("/responses", {"tools": [WEATHER, {"type": kind}]}, "tools")
            for kind in (
                "web_search", "file_search", "code_interpreter", "image_generation", "computer", "mcp", "shell", "x"
            )
        ),
        ("/responses", {"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ("/responses", {"client_metadata": {}, "tool_choice": {"type": "web_search"},
                        "tools": [{"type": "web_search"}]}, "tool_choice"),
        ("/responses", {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": [{"name": "x"}]}},
         "tool_choice"),
        ("/responses", {"tools": [{**WEATHER, "strict": "yes"}]}, "tools[0].strict"),
        ("/responses", {"prompt": {"id": "p"}}, "prompt"),
        ("/responses", {"conversation": "c"}, "conversation"),
        ("/responses", {"truncation": "auto"}, "truncation"),
        ("/responses", {"reasoning": {"effort": "banana"}}, "reasoning.effort"),
        ("/responses", {"reasoning": {"summary": "banana"}}, "reasoning.summary"),
        ("/responses", {"text": {"verbosity": "banana"}}, "text.verbosity"),
        ("/responses", {"service_tier": "banana"}, "service_tier"),
        ("/responses", {"include": ["banana"]}, "include[0]"),
        ("/responses", {"n": 3}, "n"),
        ("/responses", {"input": [{"role": "user", "content": [{"type": "input_audio", "data": "x"}]}]},
         "input[0].content[0]"),
        ("/responses", {"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]"),
        ("/responses", {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                                  {"type": "function_call_output", "call_id": "c", "output": [IMAGE]}]},
         "input[1].output[0]"),
        ("/responses", {"input": [{"type": "computer_call_output", "call_id": "c"}]}, "input[0].type"),
        ("/chat/completions", {"tools": [{"type": "web_search"}]}, "tools"),
        ("/chat/completions", {"messages": [{"role": "tool", "tool_call_id": "x", "content": "y"}]}, "messages"),
        ("/chat/completions", {"functions": [{"name": "f"}]}, "functions"),
        ("/chat/completions", {"function_call": "auto"}, "function_call"),
        ("/chat/completions", {"audio": {"voice": "x"}}, "audio"),
        ("/chat/completions", {"modalities": ["text", "audio"]}, "modalities"),
        ("/chat/completions", {"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
        ("/chat/completions", {"web_search_options": {}}, "web_search_options"),  # as it is by default
        ("/chat/completions", {"store": True}, "store"),
        ("/chat/completions", {"reasoning_effort": "banana"}, "reasoning_effort"),
        ("/chat/completions", {"verbosity": "banana"}, "verbosity"),
        ("/chat/completions", {"max_tokens": -5}, "max_tokens"),
        ("/chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens"),
        ("/chat/completions", {"top_logprobs": 3}, "top_logprobs"),
        ("/chat/completions", {"response_format": {"type": "yaml"}}, "response_format.type"),
        ("/chat/completions", {"guided_choice": []}, "guided_choice"),
        ("/chat/completions", {"guided_json": "{"}, "guided_json"),
        ("/chat/completions", {"guided_regex": "a", "guided_json": {}}, "guided_regex"),
        ("/chat/completions", {"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ("/chat/completions", {"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages"),
        ("/chat/completions", {"chat_template_kwargs": {"x": "<|im_end|>"}}, "chat_template_kwargs.x"),
        ("/chat/completions", {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:"}}]}]}, "messages[0].content[0]"),
        ("/chat/completions", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
         "messages[0].content[0]"),
        ("/completions", {"best_of": 3}, "best_of"),
        ("/completions", {"guided_json": {"type": "object"}}, "guided_json"),
        ("/completions", {"max_tokens": -1}, "max_tokens"),
        ("/completions", {"prompt": []}, "prompt"),
        ("/completions", {"prompt": ["a", 1]}, "prompt"),
        ("/completions", {"prompt": [1, 2], "echo": True}, "prompt"),
        *(
            (path, change, param)
            for path in BASES
            for change, param in (
                ({"temperature": 3}, "temperature"), ({"top_k": -2}, "top_k"), ({"min_p": 1.5}, "min_p"),
                ({"repetition_penalty": 0}, "repetition_penalty"), ({"presence_penalty": 9}, "presence_penalty"),
                ({"logit_bias": {"a": 1}}, "logit_bias"), ({"logit_bias": {"1": 101}}, "logit_bias.1"),
                ({"seed": 2**70}, "seed"), ({"stop": ["x"] * 65}, "stop"),
            )
        ),
    ],
)  # fmt: skip
async def test_what_is_not_honoured_is_refused_by_name(path: str, wrong: dict[str, Any], param: str) -> None:
    async with asking(capabilities=Capabilities(context=1000, fim=True)) as (_, ask):
        status, answer = await ask("POST", path, {**BASES[path], **wrong})
        found = answer["error"]["param"]
        assert status == 400 and (found == param or {found, param} == {"guided_regex", "guided_json"}), answer


async def test_unknown_fields_pass_and_are_named_and_what_asks_for_nothing_passes() -> None:
    async with serving() as running, aiohttp.ClientSession() as session:
        for path, base in BASES.items():
            body = {**base, "user": "u", "hologram": 1, "rest": 2, "x\r\ny": 3}
            async with session.post(running.base_url + path, json=body) as answer:
                assert answer.status == 200, await answer.text()
                assert answer.headers["x-fulgur-ignored"] == r"hologram, rest, 'x\r\ny'"
            for door in (door for kind, door in DOORS.items() if issubclass(kind, bodies.SamplingFields)):
                nothing = {name: door.defaults.get(name) for name in door.not_offered}
                async with session.post(running.base_url + path, json={**nothing, **base}) as answer:
                    assert answer.status == 200, await answer.text()


async def test_hosted_tools_are_left_out_for_codex_and_named() -> None:
    async with serving() as running, aiohttp.ClientSession() as session:
        body = {**RESPONSES, "tools": [WEATHER, {"type": "web_search"}], "client_metadata": {"session": "x"}}
        async with session.post(f"{running.base_url}/responses", json=body) as answer:
            assert answer.status == 200 and answer.headers["x-fulgur-ignored"] == "tools:web_search"


def test_no_field_stands_in_two_columns() -> None:
    for kind, door in DOORS.items():
        columns = [set(kind.__struct_fields__), set(door.idle), set(door.not_offered)]
        assert len(set.union(*columns)) == sum(map(len, columns)), kind


async def test_several_answers_stream_together_and_differ_with_a_seed() -> None:
    async with asking(script(text("one two three"))) as (running, ask):
        _, stream = await ask("POST", "/chat/completions", {**CHAT, "n": 3, "stream": True, "seed": 5})
        chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
        texts = ["", "", ""]
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        assert texts == ["one two three"] * 3
        used = [(await ask("POST", "/chat/completions", {**CHAT, "n": n}))[1]["usage"] for n in (1, 3)]
        assert used[0]["prompt_tokens"] == used[1]["prompt_tokens"], "the prompt counts once"
        assert 3 * used[0]["completion_tokens"] == used[1]["completion_tokens"]
        assert sorted(c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]) == [0, 1, 2]
        body = {"model": "m", "prompt": ["a", "b"], "n": 2, "echo": True, "max_tokens": 9}
        _, whole = await ask("POST", "/completions", body)
        assert [choice["text"] for choice in whole["choices"]] == [f"{p}one two three" for p in "aabb"]
        _, stream = await ask("POST", "/completions", {**body, "stream": True})
        texts = [""] * 4
        for line in stream.splitlines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    texts[choice["index"]] += choice["text"]
        assert texts == [choice["text"] for choice in whole["choices"]] and stream.endswith("data: [DONE]\n\n")
        assert backend_of(running).running == 0
    seeds = [each.sampling.seed for each in numbered(Completion("x", sampling=Sampling(seed=5)), 3)]
    assert seeds == [5, 6, 7]
