"""Anthropic's SDK: messages, a tool loop, a stream, counting, errors."""

import json
import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
TOOL = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
asked = {"model": "scripted", "max_tokens": 100, "tools": [TOOL]}
messages = [{"role": "user", "content": "the weather?"}]
first = client.messages.create(**asked, messages=messages)
call = next(block for block in first.content if block.type == "tool_use")
result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
with client.messages.stream(**asked, messages=messages) as stream:
    streamed = "".join(stream.text_stream)
    last = stream.get_final_message()
with client.messages.stream(**asked, messages=messages[:1]) as stream:
    kinds = [event.type for event in stream]
    called = stream.get_final_message()
seen = {
    "stop": first.stop_reason,
    "args": call.input,
    "streamed": streamed,
    "usage": last.usage.output_tokens > 0,
    "kinds": sorted(set(kinds)),
    "called": [block.input for block in called.content if block.type == "tool_use"],
    "counted": client.messages.count_tokens(model="scripted", messages=messages).input_tokens > 5,
}
try:
    client.messages.create(model="none", max_tokens=5, messages=[{"role": "user", "content": "x"}])
except anthropic.NotFoundError as error:
    seen["error"] = error.body["error"]["type"]
print(json.dumps(seen))
