"""openai-agents: a tool loop over Responses, streamed, and over Chat Completions."""

import asyncio
import json
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent


@function_tool
def weather(city: str, days: int) -> str:
    """The weather."""
    asked.append((city, days))
    return "rain"


asked: list[tuple[str, int]] = []


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
    agent = Agent("a", instructions="Be brief.", tools=[weather], model=OpenAIResponsesModel("scripted", client))
    run = Runner.run_streamed(agent, "the weather?")
    deltas = [
        event.data.delta
        async for event in run.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    chat = Agent("b", tools=[weather], model=OpenAIChatCompletionsModel("scripted", client))
    seen = {
        "responses": run.final_output,
        "streamed": "".join(deltas),
        "chat": (await Runner.run(chat, "the weather?")).final_output,
        "asked": asked,
    }
    print(json.dumps(seen))


asyncio.run(main())
