"""Ollama's API: `/api/tags`, `show`, `ps` and `version`; `/api/generate` and `/api/chat`, streamed as lines of JSON."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from aiohttp import web

from fulgur import __version__ as VERSION
from fulgur.backends.base import Backend, Completion, Conversation, Generation, Sampling, Turn
from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.ids import CALL, new_id
from fulgur.protocol.images import HEAD, image_kind
from fulgur.protocol.items import user_message
from fulgur.protocol.request import Body, ChatMessage, ChatRequest, SamplingFields, Tier
from fulgur.server import fields
from fulgur.server.answers import ERROR_SHAPES, IGNORED, json_answer, owner_of, read_request, server_of
from fulgur.server.content import check_part
from fulgur.server.doors.answer import Answer, Pace, collect, counted, encode, stream
from fulgur.server.doors.chat_input import to_turn
from fulgur.server.format import Format
from fulgur.server.registry import Registry, ServedModel, require
from fulgur.server.sampling import to_sampling
from fulgur.text.parts import CallDelta, CallEnd, CallStart, Finish, Part, ReasoningDelta, TextDelta, Usage

Think = bool | Literal["low", "medium", "high"]


class Message(msgspec.Struct, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Request(Body, kw_only=True):
    model: str
    stream: bool = True
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: Think | None = None
    service_tier: Tier | None = None  # ours


class ChatBody(Request, kw_only=True):
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None


class GenerateBody(Request, kw_only=True):
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False
    images: list[str] | None = None


class ShowBody(Body, kw_only=True):
    model: str = ""
    name: str = ""


DOOR = fields.Door(
    "ollama",
    frozenset({"keep_alive", "options", "verbose", "truncate", "shift"}),
    {
        "template": "the model's own template is used",
        "context": "send the earlier text in 'prompt', or use /api/chat",
        "logprobs": "/v1/chat/completions gives log-probabilities",
        "top_logprobs": "/v1/chat/completions gives log-probabilities",
    },
    {},
)
# The `options`: sampling settings by Ollama's names; settings of its machine, which do not affect an answer; and those
# that are accepted only with the value given here.
SAMPLING = {"repeat_penalty": "repetition_penalty"} | {
    name: name
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")
}
IDLE = frozenset(
    {
        "num_ctx",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "use_mmap",
        "use_mlock",
        "numa",
        "low_vram",
        "num_keep",
    }
)
OFF = {"mirostat": 0, "typical_p": 1.0, "tfs_z": 1.0, "penalize_newline": True, "repeat_last_n": 64}


async def tags(request: web.Request) -> web.Response:
    models = server_of(request).models
    await models.describe()
    return json_answer({"models": [_listed(entry) for entry in models.entries.values()]})


async def running(request: web.Request) -> web.Response:
    models = server_of(request).models
    loaded = [_listed(entry) | {"size_vram": 0} for entry in models.entries.values()]
    return json_answer({"models": loaded})


async def version(request: web.Request) -> web.Response:
    return json_answer({"version": VERSION})


async def show(request: web.Request) -> web.Response:
    body = await read_request(request, ShowBody)
    models = server_of(request).models
    entry = find(models, body.model or body.name)
    await models.describe()
    abilities = entry.backend.capabilities
    able = {
        "completion": True,
        "tools": abilities.tools,
        "insert": abilities.fim,
        "vision": abilities.vision,
        "thinking": abilities.reasoning,
    }
    return json_answer(
        {
            "modelfile": "",
            "parameters": "",
            "template": "{{ .Prompt }}{{ .Suffix }}" if abilities.fim else "{{ .Prompt }}",
            "modified_at": _date(entry.created),
            "details": _details(entry),
            "model_info": {"general.architecture": "fulgur", "fulgur.context_length": abilities.context},
            "capabilities": [name for name, can in able.items() if can],
        }
    )


async def chat(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, ChatBody)
    entry = find(server.models, body.model)
    backend = await entry.ready()
    if not body.messages:
        return json_answer(_line(body.model, {"message": {"role": "assistant", "content": ""}}) | _loaded())
    require(entry, "chat", "chat")
    sampling, ignored = settings(body, entry)
    messages = [_chat_message(message, f"messages[{index}]", entry) for index, message in enumerate(body.messages)]
    wanted = ChatRequest(model=body.model, messages=_with_ids(messages), tools=body.tools)
    turn, _ = to_turn(wanted, entry)
    if turn.conversation.items[-1].get("role") == "assistant":  # the beginning of the answer, as Ollama takes it
        turn.conversation.items[-1]["status"] = "in_progress"
    turn.sampling, turn.format, turn.reasoning_effort = sampling, _format(body.format), _effort(body.think)
    request[IGNORED] = ignored
    return await _answer(request, entry, body, backend, turn, chat=True)


async def generate(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, GenerateBody)
    entry = find(server.models, body.model)
    backend = await entry.ready()
    if not body.prompt and not body.suffix:
        return json_answer(_line(body.model, {"response": ""}) | _loaded())
    sampling, request[IGNORED] = settings(body, entry)
    images = _images(body.images, "images", entry)
    asked: Turn | Completion
    if body.suffix or body.raw or not backend.capabilities.chat:
        if body.suffix:
            require(entry, "fim", "fill in code between a prompt and a suffix")
        if body.format or body.system or body.images:
            raise invalid(
                "A raw prompt cannot be combined with 'format', 'system' or 'images'.", "raw", "invalid_value"
            )
        asked = Completion(body.prompt, body.suffix or None, sampling=sampling)
    else:
        message = user_message(body.prompt)
        message["content"] += images
        asked = Turn(
            Conversation([message]),
            instructions=body.system or None,
            sampling=sampling,
            format=_format(body.format),
            reasoning_effort=_effort(body.think),
        )
    return await _answer(request, entry, body, backend, asked, chat=False)


async def _answer(
    request: web.Request, entry: ServedModel, body: Request, backend: Backend, asked: Turn | Completion, *, chat: bool
) -> web.StreamResponse:
    server = server_of(request)
    asked.owner = server.cache_owner(owner_of(request))
    async with counted(request, entry, body.service_tier) as total:
        generation: Generation = backend.generate(asked) if isinstance(asked, Turn) else backend.complete(asked)
        writer = OllamaWriter(body.model, chat=chat)
        if body.stream:
            return await stream(request, [generation], writer, total)
        whole = await collect(generation, writer.pace)
        total.add(whole.finish.usage)
        return json_answer(writer.whole(whole))


class OllamaWriter:
    """Parts as lines of JSON; a call is one line, sent when it is complete."""

    content_type = "application/x-ndjson"

    def __init__(self, model: str, *, chat: bool) -> None:
        self._model = model
        self._chat = chat
        self.pace = Pace()
        self._reason = "stop"
        self._call: tuple[CallStart, list[str]] | None = None

    def part(self, index: int, part: Part) -> bytes | None:
        self.pace.see(part)
        if isinstance(part, TextDelta):
            return self._said(part.text)
        if isinstance(part, ReasoningDelta):
            return self._said("", thinking=part.text)
        if isinstance(part, CallStart):
            self._call = (part, [])
        elif isinstance(part, CallDelta) and self._call is not None:
            self._call[1].append(part.text)
        elif isinstance(part, CallEnd) and self._call is not None:
            start, pieces = self._call
            return self._said("", tool_calls=[_tool_call(start, "".join(pieces))])
        elif isinstance(part, Finish):
            self._reason = "length" if part.reason == "length" else "stop"
        return None

    def end(self, usage: Usage) -> bytes:
        return encode(_line(self._model, self._words("")) | self._end(usage)) + b"\n"

    def failed(self, error: ApiError) -> bytes:
        return encode({"error": error.message}) + b"\n"

    def whole(self, answer: Answer) -> dict[str, Any]:
        self._reason = "length" if answer.finish.reason == "length" else "stop"
        more: dict[str, Any] = {"thinking": answer.reasoning} if answer.reasoning else {}
        if answer.calls:
            more["tool_calls"] = [_tool_call(start, text) for start, text in answer.calls]
        return _line(self._model, self._words(answer.text, **more)) | self._end(answer.finish.usage)

    def _said(self, text: str, **more: Any) -> bytes:
        return encode(_line(self._model, self._words(text, **more)) | {"done": False}) + b"\n"

    def _words(self, text: str, **more: Any) -> dict[str, Any]:
        if self._chat:
            return {"message": {"role": "assistant", "content": text, **more}}
        return {"response": text, **more}

    def _end(self, usage: Usage) -> dict[str, Any]:
        reading, writing = self.pace.spans()
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": reading + writing,
            "load_duration": 0,
            "prompt_eval_count": usage.input_tokens,
            "prompt_eval_duration": reading,
            "eval_count": usage.output_tokens,
            "eval_duration": writing,
        }


def error_object(error: ApiError) -> dict[str, Any]:
    """An error in the form that Ollama's clients expect."""
    return {"error": error.message}


ERROR_SHAPES["/api/"] = error_object


def find(models: Registry, name: str) -> ServedModel:
    """The model with this name, to which Ollama's clients may have added the tag `:latest`."""
    return models.get(name.removesuffix(":latest") if name not in models.entries else name)


def settings(body: Request, entry: ServedModel) -> tuple[Sampling, list[str]]:
    """The sampling settings in the options, and the names of what is ignored."""
    _, ignored = fields.settle(body, entry, DOOR)
    given = {name: value for name, value in (body.options or {}).items() if value is not None}
    limit = given.pop("num_predict", None)
    for name, value in given.items():
        if name in OFF and value != OFF[name]:
            raise invalid(f"'options.{name}' is not offered here.", f"options.{name}", "unsupported_parameter")
    known = {SAMPLING[name]: value for name, value in given.items() if name in SAMPLING}
    try:
        sampling = msgspec.convert(known, SamplingFields)
        most = msgspec.convert(limit, int | None)
    except msgspec.ValidationError as error:
        raise invalid(f"Invalid 'options': {error}.", "options", "invalid_type") from None
    ignored += [f"options.{name}" for name in given if name not in SAMPLING and name not in IDLE and name not in OFF]
    # In Ollama a negative limit means none.
    return to_sampling(sampling, None if most is not None and most < 0 else most, "options.num_predict"), ignored


def _chat_message(message: Message, path: str, entry: ServedModel) -> ChatMessage:
    content: str | list[dict[str, Any]] = message.content
    if message.images:
        images = _images(message.images, f"{path}.images", entry)
        pictures = [{"type": "image_url", "image_url": {"url": image["image_url"]}} for image in images]
        content = [{"type": "text", "text": message.content}, *pictures]
    calls = None
    for place, call in enumerate(message.tool_calls or []):
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid("A tool call needs 'function'.", f"{path}.tool_calls[{place}]", "invalid_type")
        arguments = encode(function.get("arguments") or {}).decode()
        named = {"name": function["name"], "arguments": arguments}
        calls = [*(calls or []), {"id": call.get("id") or new_id(CALL), "type": "function", "function": named}]
    return ChatMessage(
        role=message.role, content=content, tool_calls=calls, tool_call_id=message.tool_call_id, name=message.tool_name
    )


def _with_ids(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Give tool messages the ids of the calls they answer: Ollama's have none, and answer earlier calls in order."""
    waiting: list[dict[str, Any]] = []
    for message in messages:
        waiting += message.tool_calls or []
        if message.role == "tool" and message.tool_call_id is None:
            named = [call for call in waiting if call["function"]["name"] == message.name] or waiting
            if not named:
                raise invalid("A tool message does not answer any tool call.", "messages", "call_not_found")
            message.tool_call_id = named[0]["id"]
            waiting.remove(named[0])
    return messages


def _tool_call(start: CallStart, text: str) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        arguments = {"input": text}
    return {"id": start.call_id or new_id(CALL), "function": {"name": start.name, "arguments": arguments}}


def _format(format: str | dict[str, Any] | None) -> Format | None:
    if not format:
        return None
    if isinstance(format, str):
        if format != "json":
            raise invalid("'format' must be 'json' or a JSON schema.", "format", "invalid_value")
        return {"type": "json_object"}
    return {"type": "json_schema", "name": "answer", "schema": format}


def _effort(think: Think | None) -> str | None:
    """The model's default reasoning effort, unless `think` turns it off or says how much."""
    if isinstance(think, str):
        return think
    return "none" if think is False else None


def _images(given: list[str] | None, path: str, entry: ServedModel) -> list[dict[str, Any]]:
    if given:
        check_part(entry, "input_image", f"{path}[0]")
    return [_image(data, f"{path}[{index}]") for index, data in enumerate(given or [])]


def _image(data: str, path: str) -> dict[str, Any]:
    """Ollama's images are bare base64, so the first bytes have to say what they are."""
    try:
        kind = image_kind(b64decode(data[: HEAD // 3 * 4], validate=True))
    except ValueError:
        kind = None
    if kind is None:
        raise invalid("An image must be a PNG, JPEG, WebP or GIF file in base64.", path, "invalid_image")
    return {"type": "input_image", "image_url": f"data:image/{kind};base64,{data}"}


def _line(model: str, words: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "created_at": datetime.now(UTC).isoformat(), **words}


def _loaded() -> dict[str, Any]:
    """A request without a prompt asks Ollama to load the model."""
    return {"done": True, "done_reason": "load"}


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _details(entry: ServedModel) -> dict[str, Any]:
    family = entry.backend.kind
    return {
        "parent_model": "",
        "format": family,
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": "",
    }


def _listed(entry: ServedModel) -> dict[str, Any]:
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": _date(entry.created),
        "size": 0,
        "digest": "",
        "details": _details(entry),
    }
