"""Providers that need no table in the config: servers on their usual loopback ports, and APIs whose key is set."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownProvider:
    """`env_key` is empty for a server of this machine."""

    name: str
    base_url: str
    env_key: str = ""
    wire_api: str = "chat"
    images: bool = False
    """All of its models take images."""


ON_THIS_MACHINE: dict[str, KnownProvider] = {
    "ollama": KnownProvider("Ollama", "http://127.0.0.1:11434/v1"),
    "lmstudio": KnownProvider("LM Studio", "http://127.0.0.1:1234/v1"),
    "llamacpp": KnownProvider("llama.cpp", "http://127.0.0.1:8080/v1"),
    "vllm": KnownProvider("vLLM", "http://127.0.0.1:8000/v1"),
    "sglang": KnownProvider("SGLang", "http://127.0.0.1:30000/v1"),
}
WITH_A_KEY: dict[str, KnownProvider] = {
    "openai": KnownProvider("OpenAI", "https://api.openai.com/v1", "OPENAI_API_KEY", "responses"),
    "anthropic": KnownProvider("Anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", images=True),
    "gemini": KnownProvider(
        "Gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", images=True
    ),
    "openrouter": KnownProvider("OpenRouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": KnownProvider("Groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "cerebras": KnownProvider("Cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "mistral": KnownProvider("Mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "deepseek": KnownProvider("DeepSeek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "xai": KnownProvider("xAI", "https://api.x.ai/v1", "XAI_API_KEY"),
    "together": KnownProvider("Together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
}
KNOWN = ON_THIS_MACHINE | WITH_A_KEY


def with_key_set() -> list[str]:
    """The APIs whose key is in the environment."""
    return [name for name, provider in WITH_A_KEY.items() if os.environ.get(provider.env_key)]
