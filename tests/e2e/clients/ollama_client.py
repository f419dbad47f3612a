"""The ollama package: models, chat with a tool, generate, fill in the middle, errors."""

import json
import sys

from ollama import Client, ResponseError

client = Client(host=sys.argv[1])


def weather(city: str, days: int) -> str:
    """The weather."""
    return "rain"


messages = [{"role": "user", "content": "the weather?"}]
first = client.chat("scripted", messages=messages, tools=[weather])
call = first.message.tool_calls[0].function
again = [*messages, first.message, {"role": "tool", "tool_name": call.name, "content": "rain"}]
streamed = client.chat("scripted", messages=[{"role": "user", "content": "hello"}], stream=True)
seen = {
    "models": [model.model for model in client.list().models],
    "can": client.show("fulgur-60m").capabilities,
    "args": call.arguments,
    "text": client.chat("scripted", messages=again, tools=[weather]).message.content,
    "streamed": "".join(chunk.message.content for chunk in streamed),
    "generated": client.generate("scripted", "hello").response,
    "filled": client.generate(
        "fulgur-60m", "def add(a, b):\n    return ", suffix="\n", options={"num_predict": 8}
    ).response,
}
try:
    client.chat("none", messages=messages)
except ResponseError as error:
    seen["error"] = [error.status_code, "no model 'none'" in error.error]
print(json.dumps(seen))
