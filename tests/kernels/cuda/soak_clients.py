"""What one client of `gpu_soak.py` does: one request of a random kind after the other, each checked as it ends.

The soak's tokenizer has no merges, so a letter of a prompt is a token, and the number of input tokens is known.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import aiohttp
import fastjsonschema

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
AROUND = len("user: \nassistant: ")  # what the template adds to one message
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "count", "done", "tags"],
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 99999},
        "done": {"type": "boolean"},
        "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["red", "green", "blue"]}},
    },
}
fits_schema = fastjsonschema.compile(SCHEMA)
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


class Wrong(Exception):
    """An answer is not what was promised."""


def expect(good: object, said: str) -> None:
    if not good:
        raise Wrong(said)


@dataclass
class Tally:
    """What all clients saw together."""

    kinds: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    tokens: int = 0
    prompts: int = 0
    cached: int = 0
    cut: int = 0
    steered: int = 0

    def count(self, inputs: int, cached: int, outputs: int) -> None:
        self.prompts, self.cached, self.tokens = self.prompts + inputs, self.cached + cached, self.tokens + outputs


@dataclass
class Asked:
    """One request: what the server shall count, and when it was sent."""

    prompt: str
    most: int
    sent: float = field(default_factory=perf_counter)
    first: bool = False

    @property
    def inputs(self) -> int:
        return len(self.prompt) + AROUND


class Client:
    def __init__(self, http: aiohttp.ClientSession, model: str, number: int, longest: int, tally: Tally) -> None:
        self.http, self.model, self.tally, self.longest = http, model, tally, longest
        self.random = random.Random(number)
        self.kinds: list[Callable[[], Awaitable[None]]] = [
            self.streamed, self.streamed, self.chat, self.chat, self.several, self.schema, self.chat_schema,
            self.logprobs, self.stop, self.whole, self.steer, self.steer_later, self.conversation, self.type_ahead,
            self.cancel, self.hang_up, self.hang_up_socket, self.completions,
        ]  # fmt: skip

    async def once(self) -> None:
        """One request of a random kind."""
        kind = self.random.choice(self.kinds)
        try:
            await kind()
            self.tally.kinds[kind.__name__] += 1
        except (Wrong, aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError, TypeError) as error:
            self.tally.errors.append(f"{kind.__name__}: {type(error).__name__}: {str(error)[:400]}")

    # What is asked

    def ask(self, most: int) -> Asked:
        """A prompt of 100 tokens or more: the beginning of one of eight texts, and words of its own."""
        longest = self.longest - most - 200
        length = int(100 * (longest / 100) ** self.random.random())
        text = random.Random(self.random.randrange(8)).choices("abcdefghijklmnopqrst     \n", k=longest)
        own = self.random.randrange(10, 60)
        return Asked("x" + "".join(text[: length - own]) + "".join(self.random.choices("uvwxyz ", k=own)) + "?", most)

    def sampling(self) -> dict[str, Any]:
        settings: tuple[dict[str, Any], ...] = (
            {}, {"temperature": 0}, {"temperature": 0.7, "seed": self.random.randrange(99)},
            {"temperature": 0.9, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
            {"temperature": 0, "presence_penalty": 0.5},
        )  # fmt: skip
        return self.random.choice(settings)

    def create(self, asked: Asked, **more: Any) -> dict[str, Any]:
        body = {"model": self.model, "input": asked.prompt, "max_output_tokens": asked.most}
        return {**body, "store": self.random.random() < 0.2, **self.sampling(), **more}

    def messages(self, asked: Asked, **more: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": asked.prompt}], "max_tokens": asked.most}
        return {"model": self.model, **body, **self.sampling(), **more}

    # What is checked

    def seen(self, asked: Asked) -> None:
        """A piece of the answer is here."""
        if not asked.first:
            asked.first = True
            self.tally.first_tokens.append(perf_counter() - asked.sent)

    def ended(self, response: dict[str, Any], asked: Asked, text: str, *, reasons: tuple[str, ...] = ()) -> None:
        """A response that nobody cut short: completed or as long as it may be, its usage its tokens."""
        why = (response.get("incomplete_details") or {}).get("reason")
        expect(response["status"] == "completed" or why in ("max_output_tokens", *reasons), f"ended as {response}")
        usage, most = response["usage"], asked.most
        inputs, outputs = usage["input_tokens"], usage["output_tokens"]
        expect(usage["total_tokens"] == inputs + outputs, f"usage does not add up: {usage}")
        expect(0 < outputs <= most and (why != "max_output_tokens" or outputs == most), f"{usage} of at most {most}")
        cached = usage["input_tokens_details"]["cached_tokens"]
        expect(0 <= cached < inputs, f"more cached than asked: {usage}")
        if response["previous_response_id"] is None:
            expect(inputs == asked.inputs, f"{inputs} input tokens, {asked.inputs} were sent")
        said = "".join(part["text"] for item in response["output"] for part in item.get("content") or ())
        expect(said == text, f"the deltas are {text[-80:]!r}, the answer {said[-80:]!r}")
        self.tally.count(inputs, cached, outputs)

    # The Responses API over HTTP

    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Of a stream; leaving early hangs up."""
        async with self.http.post(path, json={**body, "stream": True}) as answer:
            if answer.status != 200:
                raise Wrong(f"{path}: {answer.status} {await answer.text()}")
            try:
                async for line in answer.content:
                    if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                        yield json.loads(line[6:])
            finally:
                answer.close()

    async def answered(self, asked: Asked, body: dict[str, Any], cut: int | None = None) -> str:
        """A streamed response to its end, or until so many deltas have come."""
        text, deltas, number, stream = "", 0, 0, self.events("/v1/responses", body)
        try:
            async for event in stream:
                expect(event["sequence_number"] == number, f"event {event['sequence_number']} instead of {number}")
                number += 1
                if event["type"] == "response.output_text.delta":
                    self.seen(asked)
                    text, deltas = text + event["delta"], deltas + 1
                    if deltas == cut:
                        self.tally.cut += 1
                        return text
                elif event["type"] in ENDS:
                    expect("response" in event, f"the stream ended with {event}")
                    self.ended(event["response"], asked, text)
                    return text
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        raise Wrong(f"the stream stopped after {number} events without an end")

    async def streamed(self) -> None:
        asked = self.ask(self.random.randrange(8, 200))
        await self.answered(asked, self.create(asked))

    async def hang_up(self) -> None:
        asked = self.ask(400)
        await self.answered(asked, self.create(asked), cut=self.random.randrange(1, 10))

    async def schema(self) -> None:
        asked = self.ask(200)
        form = {"format": {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}}
        fits_schema(json.loads(await self.answered(asked, self.create(asked, text=form))))

    async def whole(self) -> None:
        """Without a stream."""
        asked = self.ask(self.random.randrange(4, 60))
        async with self.http.post("/v1/responses", json=self.create(asked)) as answer:
            expect(answer.status == 200, f"{answer.status} {await answer.text()}")
            response = await answer.json()
        said = "".join(part["text"] for item in response["output"] for part in item["content"])
        self.ended(response, asked, said)

    # Chat and text completions

    async def chatted(self, asked: Asked, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[str, int]:
        """Every choice of a stream to its end; the text of the first, and how many log-probabilities came."""
        texts, ends, used, told = Counter[int](), dict[int, str](), None, 0
        first = ""
        async for event in self.events(path, {**body, "stream_options": {"include_usage": True}}):
            expect("error" not in event, f"{event}")
            used = event.get("usage") or used
            for choice in event["choices"]:
                piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                if piece:
                    self.seen(asked)
                texts[choice["index"]] += len(piece)
                first += piece if choice["index"] == 0 else ""
                logprobs = choice.get("logprobs") or {}
                told += len(logprobs.get("content") or logprobs.get("tokens") or ())
                if choice.get("finish_reason"):
                    ends[choice["index"]] = choice["finish_reason"]
        n = body.get("n", 1)
        expect(sorted(ends) == list(range(n)) and set(ends.values()) <= {"stop", "length"}, f"ends of {n}: {ends}")
        expect(used is not None, "no usage was sent")
        assert used is not None
        inputs, outputs = used["prompt_tokens"], used["completion_tokens"]
        sent = asked.inputs if "messages" in body else len(asked.prompt)
        expect(inputs == sent, f"{inputs} input tokens, {sent} were sent")
        expect(0 < outputs <= n * asked.most, f"{used} of at most {n} x {asked.most}")
        if set(ends.values()) == {"length"}:
            expect(outputs == n * asked.most, f"{used}: ended by length before {n} x {asked.most}")
            expect(not told or told == outputs, f"{told} log-probabilities of {outputs} tokens")
        self.tally.count(inputs, (used.get("prompt_tokens_details") or {}).get("cached_tokens", 0), outputs)
        return first, told

    async def chat(self) -> None:
        asked = self.ask(self.random.randrange(8, 200))
        await self.chatted(asked, self.messages(asked))

    async def several(self) -> None:
        asked = self.ask(self.random.randrange(8, 60))
        await self.chatted(asked, self.messages(asked, n=3, temperature=0.8))

    async def chat_schema(self) -> None:
        asked = self.ask(200)
        form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
        text, _ = await self.chatted(asked, self.messages(asked, response_format=form))
        fits_schema(json.loads(text))

    async def logprobs(self) -> None:
        asked = self.ask(40)
        _, told = await self.chatted(asked, self.messages(asked, logprobs=True, top_logprobs=5))
        expect(told, "no log-probabilities came")

    async def stop(self) -> None:
        asked = self.ask(100)
        text, _ = await self.chatted(asked, self.messages(asked, stop=["e", "Q"]))
        expect("e" not in text and "Q" not in text, f"text after a stop string: {text!r}")

    async def completions(self) -> None:
        asked = self.ask(30)
        body = {"model": self.model, "prompt": asked.prompt, "max_tokens": asked.most, "n": 2, "temperature": 0.8}
        await self.chatted(asked, {**body, "logprobs": 2}, "/v1/completions")

    # The socket

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Socket]:
        async with self.http.ws_connect("/v1/responses", max_msg_size=0) as raw:
            yield Socket(self, raw)

    async def steer(self) -> None:
        await self._steered("token")

    async def steer_later(self) -> None:
        await self._steered("item")

    async def _steered(self, boundary: str) -> None:
        asked = self.ask(120)
        async with self.socket() as socket:
            first = await socket.begin(asked, self.random.randrange(1, 6))
            words = "".join(self.random.choices("uvwxyz ", k=40))
            await socket.send("response.steer", previous_response_id=first, input=words, boundary=boundary)
            ended, needed = 0, 2
            while ended < needed:
                event = await socket.next()
                if event["type"] == "response.steer.failed":
                    code = event["error"]["code"]
                    expect(code == "response_already_completed", f"the steer failed: {event}")
                    needed = 1
                elif event["type"] in ENDS:
                    socket.ended(event, asked, reasons=("steered",))
                    ended += 1
            self.tally.steered += needed == 2

    async def conversation(self) -> None:
        asked = self.ask(60)
        async with self.socket() as socket:
            response = await socket.turn(asked)
            for _ in range(2):
                asked = Asked("and " + "".join(self.random.choices("uvwxyz ", k=30)), 40)
                response = await socket.turn(asked, previous_response_id=response["id"])
                expect(
                    response["usage"]["input_tokens_details"]["cached_tokens"], "nothing of the turn before was kept"
                )

    async def type_ahead(self) -> None:
        asked = self.ask(40)
        async with self.socket() as socket:
            half = asked.prompt[: len(asked.prompt) // 2]
            await socket.send("response.prefill", model=self.model, input=half, store=False, prefill_id="p")
            while (event := await socket.next())["type"] != "response.prefilled":
                expect(event["type"] != "error", f"{event}")
            asked.sent = perf_counter()
            await socket.turn(asked)

    async def cancel(self) -> None:
        asked = self.ask(400)
        async with self.socket() as socket:
            name = await socket.begin(asked, self.random.randrange(1, 6))
            await socket.send("response.cancel", response_id=name)
            while (event := await socket.next())["type"] not in ENDS:
                pass
            if event["type"] == "response.incomplete" and event["response"]["status"] == "cancelled":
                self.tally.cut += 1
            else:
                socket.ended(event, asked)

    async def hang_up_socket(self) -> None:
        asked = self.ask(400)
        async with self.socket() as socket:
            await socket.begin(asked, self.random.randrange(1, 6))
            self.tally.cut += 1


class Socket:
    """One WebSocket: the numbers of each response's events are dense, and its deltas are its text."""

    def __init__(self, client: Client, raw: aiohttp.ClientWebSocketResponse) -> None:
        self._client, self._raw = client, raw
        self._number, self._text = 0, ""
        self._asked: Asked | None = None

    async def send(self, kind: str, **fields: Any) -> None:
        await self._raw.send_json({"type": kind, **fields})

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = await self._raw.receive_json()
        if event["type"] == "response.created":
            self._number, self._text = 0, ""
        if "sequence_number" in event:
            expect(event["sequence_number"] == self._number, f"{event['sequence_number']}, not {self._number}: {event}")
            self._number += 1
        if event["type"] == "response.output_text.delta":
            self._text += event["delta"]
            if self._asked is not None:
                self._client.seen(self._asked)
        return event

    async def begin(self, asked: Asked, deltas: int, **more: Any) -> str:
        """A response, up to its first pieces; its id."""
        self._asked = asked
        await self.send("response.create", **{**self._client.create(asked, store=False), **more})
        name = ""
        while deltas:
            event = await self.next()
            expect(event["type"] not in ENDS, f"ended before its first pieces: {event}")
            name = event["response"]["id"] if event["type"] == "response.created" else name
            deltas -= event["type"] == "response.output_text.delta"
        return name

    async def turn(self, asked: Asked, **more: Any) -> dict[str, Any]:
        self._asked = asked
        await self.send("response.create", **{**self._client.create(asked, store=False), **more})
        while (event := await self.next())["type"] not in ENDS:
            pass
        self.ended(event, asked)
        response: dict[str, Any] = event["response"]
        return response

    def ended(self, event: dict[str, Any], asked: Asked, *, reasons: tuple[str, ...] = ()) -> None:
        expect("response" in event, f"ended as {event}")
        self._client.ended(event["response"], asked, self._text, reasons=reasons)
