"""The engine on this machine as a backend: chat template in front, splitter and grammars behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fulgur.backends.base import Backend, Capabilities, Completion, Generation, Turn
from fulgur.backends.compile import GrammarCompiler
from fulgur.backends.local_completion import CursorCompletion
from fulgur.backends.local_generation import LocalGeneration
from fulgur.backends.local_request import api_error, edit_item
from fulgur.backends.prompts import Prompt, Prompts
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import Item
from fulgur.text import code_prompt
from fulgur.text.code_prompt import CodePrompt
from fulgur.text.edit_format import RecentEdit, encode_pieces
from fulgur.text.fim import fim_family, fim_prompt, fim_stop_tokens
from fulgur.text.parts import Usage
from fulgur.text.template import MessagesRefused
from fulgur.workspace import folders

if TYPE_CHECKING:
    from fulgur.engine.generation import Generation as EngineGeneration
    from fulgur.engine.load import EngineInfo
    from fulgur.engine.params import GenerateRequest
    from fulgur.server.config import Model

_ANSWER = 256  # tokens left for a completion that sets no limit
_LONG = 8_192  # characters: longer texts are rendered and encoded on a thread, so that other streams go on


class Engine(Protocol):
    """What answers requests: a process here (`EngineClient`), or replicas elsewhere (`ClusterEngine`)."""

    info: EngineInfo

    def generate(self, request: GenerateRequest) -> EngineGeneration: ...
    async def close(self) -> None: ...


class LocalBackend(Backend):
    """One model in its own engine process."""

    kind = "local"
    default_temperature = 0.0

    def __init__(self, name: str, model: Model) -> None:
        self.name = name
        self.capabilities = Capabilities(context=model.context)
        self._model = model
        self._path = folders.expanded(model.path)
        self.compiler = GrammarCompiler(self._path)
        self._prompts: Prompts | None = None
        self._engine: Engine | None = None
        self._suffix_first = code_prompt.trained_suffix_first(self._path)

    @property
    def prompts(self) -> Prompts:
        assert self._prompts is not None
        return self._prompts

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    async def describe(self) -> None:
        if self._prompts is None:
            self._prompts, self.capabilities = await asyncio.to_thread(self._read)

    async def start(self) -> None:
        await self.describe()
        await self.compiler.start()
        self._engine = await self.open_engine()
        context = min(self._model.context or self._engine.info.context, self._engine.info.context)
        self.capabilities = _with_context(self.capabilities, context)

    async def open_engine(self) -> Engine:
        from fulgur.engine.process import EngineClient

        model = self._model
        return await EngineClient.start(
            self._path,
            bits=model.bits or None,
            threads=model.threads or None,
            kv_tokens=model.kv_tokens or model.context or None,
            runtime=model.runtime,
            device=model.device,
            kv_dtype=model.kv_dtype,
        )

    def submit(self, request: GenerateRequest, asked: Turn | Completion) -> EngineGeneration:
        """Submit to the engine a request that was made for `asked`."""
        return self.engine.generate(request)

    async def close(self) -> None:
        await self.compiler.close()
        if self._engine is not None:
            await self._engine.close()

    def generate(self, turn: Turn) -> Generation:
        return LocalGeneration(self, turn)

    def complete(self, completion: Completion) -> Generation:
        if self.capabilities.edit and isinstance(completion.prompt, str):
            return CursorCompletion(self, completion)
        return LocalGeneration(self, completion)

    async def prefill(self, turn: Turn, *, unfinished: bool = False) -> Usage:
        from fulgur.engine.events import Finished
        from fulgur.engine.params import GenerateRequest

        prompt = await self.prompt(turn, unfinished=unfinished)
        usage = Usage(input_tokens=len(prompt.tokens))
        generation = self.submit(GenerateRequest(prompt.tokens, prefill_only=True, owner=turn.owner), turn)
        try:
            async for event in generation:
                if isinstance(event, Finished):
                    usage.cached_tokens = event.usage.cached_tokens
        except FulgurError as error:
            raise api_error(error, self.name) from None
        finally:
            generation.cancel()
        return usage

    async def count(self, turn: Turn) -> int:
        try:
            return len((await self.prompt(turn)).tokens)
        except FulgurError as error:
            raise api_error(error, self.name) from None

    async def prompt(self, turn: Turn, *, unfinished: bool = False, thinking: bool = True) -> Prompt:
        """The turn's tokens; a long text that is not known yet is encoded off the event loop."""
        if edit := edit_item(turn):
            return await asyncio.to_thread(self._edit_prompt, edit)
        extra: dict[str, Any] = {} if thinking and turn.reasoning_effort != "none" else {"enable_thinking": False}
        if turn.reasoning_effort not in (None, "none"):
            extra["reasoning_effort"] = turn.reasoning_effort
        extra |= turn.template_values
        make = functools.partial(self.prompts.of, turn, unfinished=unfinished, limit=self.capabilities.context, **extra)
        try:
            if turn.conversation.own_size() + len(turn.instructions or "") > _LONG:
                return await asyncio.to_thread(make)
            return make()
        except MessagesRefused as error:
            raise ApiError(400, "invalid_prompt", str(error), param="input") from None

    def _edit_prompt(self, item: Item) -> Prompt:
        recent = [RecentEdit(edit["before"], edit["after"]) for edit in item.get("recent", ())]
        above, below, instruction = item.get("above", ""), item.get("below", ""), item.get("instruction")
        if instruction is None and not recent:
            raise ApiError(400, "invalid_request", "An edit needs an instruction or recent edits.", param="input")
        try:
            asked = code_prompt.edit_request(
                self._count, self.capabilities.context, item["path"], above, item["region"], below, instruction, recent
            )
        except FulgurError as error:
            raise ApiError(400, "context_length_exceeded", f"'{self.name}': {error.message}", param="input") from None
        return self.encoded(asked)

    async def at_cursor(self, completion: Completion) -> CodePrompt:
        """The prompt of a completion by a model that knows the edit format."""
        sampling = completion.sampling
        context, path = self.capabilities.context, completion.path or code_prompt.UNNAMED
        most = sampling.max_tokens or min(_ANSWER, context // 4)
        try:
            return await asyncio.to_thread(
                code_prompt.completion_request,
                self._count, context, path, str(completion.prompt), completion.suffix or "", most,
                one_line="\n" in sampling.stop, suffix_first=self._suffix_first,
            )  # fmt: skip
        except FulgurError as error:
            raise ApiError(400, "invalid_request", f"'{self.name}': {error.message}", param="max_tokens") from None

    def encoded(self, asked: CodePrompt) -> Prompt:
        return Prompt("", encode_pieces(self.prompts.tokenizer, asked.pieces), asked.max_tokens)

    def spelled(self, begins: str) -> list[int]:
        """The tokens of a text that an answer begins with, as the engine has them."""
        return self.prompts.tokenizer.encode(begins, special=False, continuation=True) if begins else []

    def _count(self, text: str) -> int:
        return len(self.prompts.tokenizer.encode(text, special=False))

    async def raw_prompt(self, completion: Completion) -> Prompt:
        tokenizer = self.prompts.tokenizer
        if not isinstance(completion.prompt, str):
            return Prompt("", completion.prompt)
        if completion.suffix is not None:
            # Cut around the cursor: an editor sends the whole file.
            most = completion.sampling.max_tokens or min(_ANSWER, self.capabilities.context // 4)
            most = self.capabilities.context - most - self._count(completion.path or "") - 16
            prefix, suffix = await asyncio.to_thread(
                code_prompt.shortened, self._count, completion.prompt, completion.suffix, most
            )
            return Prompt("", fim_prompt(tokenizer, prefix, suffix, path=completion.path))
        tokens = tokenizer.encode(completion.prompt)
        if tokenizer.add_bos and tokenizer.bos_id is not None:
            tokens = [tokenizer.bos_id, *tokens]
        return Prompt(completion.prompt, tokens)

    def stop_tokens(self) -> tuple[int, ...]:
        """For raw prompts: the markers that end an answer, where the model has any."""
        with contextlib.suppress(FulgurError):
            return fim_stop_tokens(self.prompts.tokenizer)
        return ()

    def _read(self) -> tuple[Prompts, Capabilities]:
        from fulgur.engine.load import open_tokenizer

        if not self._path.exists():
            raise FulgurError(f"There is no model at {self._path}.", hint="Correct models.NAME.path in server.toml.")
        tokenizer = open_tokenizer(self._path)
        prompts = Prompts(tokenizer, self.name)
        family = fim_family(tokenizer)
        template = tokenizer.chat_template or ""
        capabilities = Capabilities(
            context=self._model.context or _context_of(self._path),
            chat=bool(template),
            tools=prompts.format != "plain",
            fim=family is not None,
            edit=family is not None and family.name == "fulgur",
            steering=bool(template),
            grammar=True,
            reasoning="<think>" in template or prompts.format == "harmony",
            logprobs=True,
        )
        return prompts, capabilities


def _context_of(path: Path) -> int:
    from fulgur.model.config import ModelConfig

    return ModelConfig.from_folder(path).max_context if path.is_dir() else 0


def _with_context(capabilities: Capabilities, context: int) -> Capabilities:
    from dataclasses import replace

    return replace(capabilities, context=context)
