"""LangChain by three doors: OpenAI (Chat and Responses), Anthropic, Ollama; each with a tool and streamed."""

import json
import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI


@tool
def weather(city: str, days: int) -> str:
    """The weather."""
    return "rain"


def loop(model: Any) -> dict[str, Any]:
    bound = model.bind_tools([weather])
    history: list[Any] = [HumanMessage("the weather?")]
    first = bound.invoke(history)
    call = first.tool_calls[0]
    history += [first, ToolMessage("rain", tool_call_id=call["id"])]
    streamed = "".join(chunk.text for chunk in model.stream("hello"))
    return {"args": call["args"], "text": bound.invoke(history).text, "streamed": streamed}


root = sys.argv[1]
openai: dict[str, Any] = {"model": "scripted", "base_url": f"{root}/v1", "api_key": "none", "max_retries": 0}
print(
    json.dumps(
        {
            "chat": loop(ChatOpenAI(**openai)),
            "responses": loop(ChatOpenAI(**openai, use_responses_api=True)),
            "anthropic": loop(ChatAnthropic(model="scripted", base_url=root, api_key="none", max_retries=0)),
            "ollama": loop(ChatOllama(model="scripted", base_url=root)),
        }
    )
)
