"""Any Responses or Chat Completions API as a backend: behind this server it gains the WebSocket and steering."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from fulgur.backends import upstream_chat, upstream_responses
from fulgur.backends.base import Backend, Capabilities, Completion, Generation, Turn
from fulgur.backends.upstream_generation import UpstreamGeneration
from fulgur.client.discover import in_words
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.text.parts import Usage

if TYPE_CHECKING:
    from fulgur.server.config import Model, Upstream


class UpstreamBackend(Backend):
    """One model of another server."""

    kind = "upstream"

    def __init__(self, name: str, model: Model, upstream: Upstream) -> None:
        self.name = name
        self.model_there = model.upstream_model or name
        self.settings = upstream
        self.url = upstream.url.rstrip("/")
        self.dialects = frozenset({upstream.api, "completions"})
        self.capabilities = Capabilities(
            context=model.context,
            chat=model.chat,
            tools=model.tools,
            fim=model.fim,
            vision=model.vision,
            reasoning=model.reasoning,
        )
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        headers = {}
        if self.settings.key_env:
            key = os.environ.get(self.settings.key_env)
            if not key:
                raise FulgurError(f"{self.settings.key_env} is not set, but the backend needs it.")
            headers["Authorization"] = f"Bearer {key}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=self.settings.timeout_s)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def generate(self, turn: Turn) -> Generation:
        chosen = upstream_responses if self.settings.api == "responses" else upstream_chat
        return UpstreamGeneration(self, turn, chosen.path, chosen.body, chosen.Reader)

    def complete(self, completion: Completion) -> Generation:
        chat = upstream_chat
        return UpstreamGeneration(self, completion, "/completions", chat.completion_body, chat.Reader)

    async def prefill(self, turn: Turn, *, unfinished: bool = False) -> Usage:
        """Self-hosted servers keep the prefix of a one-token answer; where `prefill` is off nothing is sent."""
        if not self.settings.prefill or self.settings.api != "chat":
            return Usage()
        body = upstream_chat.body(self, turn) | {"stream": False, "max_tokens": 1}
        body.pop("stream_options", None)
        async with await self.post("/chat/completions", body) as answer:
            return upstream_chat.usage_of(msgspec.json.decode(await answer.read()).get("usage"))

    async def count(self, turn: Turn) -> int:
        if self.settings.api != "responses":
            raise ApiError(
                400, "model_not_capable", f"The backend of '{self.name}' cannot count tokens.", param="model"
            )
        body = upstream_responses.body(self, turn)
        wanted: dict[str, Any] = {key: body[key] for key in ("model", "input", "instructions", "tools") if key in body}
        async with await self.post("/responses/input_tokens", wanted) as answer:
            return int(msgspec.json.decode(await answer.read())["input_tokens"])

    async def post(self, path: str, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """Send a request; what the upstream refuses becomes our error, with its own words."""
        assert self._session is not None
        try:
            answer = await self._session.post(
                self.url + path, data=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
            )
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiError(
                503,
                "model_not_available",
                f"The backend of '{self.name}' at {self.url} does not answer: {in_words(error)}",
            ) from None
        if answer.status >= 400:
            raise self.refused(answer.status, await answer.read(), dict(answer.headers))
        return answer

    def refused(self, status: int, data: bytes, headers: dict[str, str]) -> ApiError:
        """The upstream's refusal, as an error of ours."""
        message, code = data.decode("utf-8", "replace")[:500], "upstream_error"
        try:
            error = msgspec.json.decode(data)
            error = error.get("error", error)
            message = str(error.get("message") or message)
            code = str(error.get("code") or code)
        except (msgspec.DecodeError, AttributeError):
            pass
        if "context length" in message or "context_length" in code or "context size" in message:
            return ApiError(400, "context_length_exceeded", f"'{self.name}': {message}", param="input")
        if status == 429:
            kept = {name: value for name, value in headers.items() if name.lower().startswith("retry-after")}
            return ApiError(429, "rate_limit_exceeded", f"'{self.name}': {message}", headers=kept)
        known = status if status in (400, 404, 413, 422) else 502
        return ApiError(known, code if known != 502 else "upstream_error", f"'{self.name}': {message}")

    def check_model(self, answered: Any) -> None:
        """Raise a 502 unless the answering model is the one that was asked, or a dated or shortened name of it."""
        if not isinstance(answered, str) or not answered:
            return
        wanted, given = self.model_there.lower(), answered.lower()
        if given.startswith(wanted) or wanted.rpartition("/")[2] in given or given in wanted:
            return
        raise ApiError(
            502,
            "model_mismatch",
            f"The backend answered with '{answered}' instead of '{self.model_there}'; the answer is not used.",
        )
