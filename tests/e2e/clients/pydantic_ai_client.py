"""pydantic-ai by three doors, with a tool, and a typed answer under a schema."""

import json
import sys
from typing import Any

from anthropic import AsyncAnthropic
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

root = sys.argv[1]
openai = OpenAIProvider(base_url=f"{root}/v1", api_key="none")
anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=root, api_key="none", max_retries=0))


class City(BaseModel):
    name: str = Field(max_length=8)
    size: int = Field(ge=0, le=9)


def told(model: Any) -> str:
    agent = Agent(model)

    @agent.tool_plain
    def weather(city: str, days: int) -> str:
        """The weather."""
        return "rain"

    return agent.run_sync("the weather?").output


seen: dict[str, Any] = {
    "chat": told(OpenAIChatModel("scripted", provider=openai)),
    "responses": told(OpenAIResponsesModel("scripted", provider=openai)),
    "anthropic": told(AnthropicModel("scripted", provider=anthropic)),
}
typed = Agent(OpenAIChatModel("local", provider=openai), output_type=NativeOutput(City)).run_sync("a city").output
seen["typed"] = typed.model_dump()
print(json.dumps(seen))
