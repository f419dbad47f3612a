"""litellm by its OpenAI, Anthropic and Ollama routes."""

import json
import sys

import litellm

root = sys.argv[1]
ROUTES = {
    "openai/scripted": f"{root}/v1",
    "anthropic/scripted": root,
    "ollama_chat/scripted": root,
}
seen = {}
for model, base in ROUTES.items():
    messages = [{"role": "user", "content": "hello"}]
    whole = litellm.completion(model=model, messages=messages, api_base=base, api_key="none", num_retries=0)
    chunks = litellm.completion(model=model, messages=messages, api_base=base, api_key="none", stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    seen[model] = [whole.choices[0].message.content, streamed, whole.usage.total_tokens > 0]
try:
    litellm.completion(model="openai/none", messages=messages, api_base=f"{root}/v1", api_key="none", num_retries=0)
except litellm.NotFoundError as error:
    seen["error"] = "no model 'none'" in str(error)
print(json.dumps(seen))
