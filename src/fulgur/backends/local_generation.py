"""One answer of the local engine: engine events in, parts of an answer out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fulgur.backends.base import Completion, Generation, Sampling, Turn
from fulgur.backends.calls import call_start, custom_input
from fulgur.backends.constrain import TOOL_CALL, Constraint, check_grammars, constraint_of, own_grammar
from fulgur.backends.local_request import api_error, edit_item, logprob_object, sampling_params
from fulgur.backends.prompts import Prompt, with_tail
from fulgur.engine import events
from fulgur.engine.errors import ContextLengthExceeded, InvalidRequest
from fulgur.engine.params import GenerateRequest
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import Item
from fulgur.text.edit_format import CALL, NOEDIT
from fulgur.text.parts import (
    Begin,
    CallDelta,
    CallEnd,
    CallStart,
    Finish,
    Malformed,
    Part,
    ReasoningDelta,
    Steered,
    TextDelta,
    Usage,
)
from fulgur.text.search import Step, beyond
from fulgur.text.split import (
    Splitter,
    call_opening,
    marker_tokens,
    opens_reasoning,
    reasoning_end,
    splitter_for,
)
from fulgur.text.split_mistral import CALL as MISTRAL_CALL
from fulgur.text.stream import StreamDecoder

if TYPE_CHECKING:
    from fulgur.backends.local import LocalBackend
    from fulgur.engine.generation import Generation as EngineGeneration
    from fulgur.text.grammar import GrammarSpec


class LocalGeneration(Generation):
    """A turn (or a raw prompt) being answered."""

    def __init__(self, backend: LocalBackend, asked: Turn | Completion) -> None:
        self._backend = backend
        self._asked = asked
        self._turn = asked if isinstance(asked, Turn) else None
        self._constraint = constraint_of(asked, backend.prompts.format) if isinstance(asked, Turn) else None
        self._engine: EngineGeneration | None = None
        self._prompt = Prompt("", [])
        self._splitter: Splitter = splitter_for("plain")
        self._answer: list[str] = []
        self._tokens: list[int] = []
        self._written = 0  # tokens since the last steer
        self._given = backend.spelled(asked.sampling.begins)  # tokens that the answer repeats, or goes beyond
        self._steers: list[tuple[list[Item], Prompt]] = []
        self._cancelled = False
        self._ended = False
        self._usage = Usage()
        self._visible: tuple[int, ...] = ()  # special tokens that are shown
        self._logprobs: list[dict[str, Any]] | None = [] if asked.sampling.top_logprobs is not None else None
        self.log_probability = 0.0  # of the tokens so far, where the request asks for it
        self.steps: list[Step] = []  # the same tokens with their alternatives
        self._calls = 0
        self._submitted = 0.0
        self._one_call = self._turn is not None and not self._turn.parallel_tool_calls
        self._enough = ""  # why nothing more is wanted
        self._custom: list[str] | None = None  # JSON arguments of a custom call, until its input is known
        self._tools = {tool["name"]: tool for tool in (asked.tools if isinstance(asked, Turn) else [])}

    def cancel(self) -> None:
        self._cancelled = True
        if self._engine is not None and not self._ended:
            self._engine.cancel()

    def steer(self, items: list[Item]) -> bool:
        # When another steer is pending, this one joins its new direction, whatever became of the old one.
        over = self._ended or self._cancelled or bool(self._enough and not self._steers)
        if over or self._engine is None or self._constraint is not None:
            return False
        if edit_item(self._turn):
            raise ApiError(400, "steering_not_supported", "An edit cannot be steered; cancel it and send another.")
        steer = self._backend.prompts.steer(items)
        self._steers.append((items, steer))
        self._engine.steer(steer.tokens)
        return True

    async def __aiter__(self) -> AsyncIterator[Part]:
        try:
            await self._start()
            assert self._engine is not None
            call = self._constraint.call if self._constraint is not None else None
            if call is not None:
                self._calls += 1
            async for batch in self._engine.batches():
                left = len(batch)
                for event in batch:
                    left -= 1
                    self.more = left > 0
                    if isinstance(event, events.Token):
                        if self._enough:
                            continue  # generated before the engine heard of the stop
                        self._take(event)
                        if event.text:
                            for part in self._split(event.text, call):
                                yield part
                                if isinstance(part, CallEnd) and self._one_call:
                                    self.stop("stop")
                                    break
                                if isinstance(part, CallStart) and (grammar := self._grammar_of(part)) is not None:
                                    async for inner in self._custom_input(part, grammar):
                                        yield inner
                                    return
                    elif isinstance(event, events.Started):
                        self._usage = Usage(event.prompt_tokens, event.cached_tokens)
                        yield Begin(event.prompt_tokens, event.cached_tokens)
                        if call is not None:
                            yield call
                    elif isinstance(event, events.SteerOutcome):
                        if event.message is not None:
                            self._refused()
                            continue
                        self._answer.append(event.text)
                        for part in (*self._split(event.text, call), *self._pass_on(self._splitter.finish())):
                            yield part
                        yield self._steered()
                    else:
                        self._ended = True
                        for part in self._finish(event, call):
                            yield part
        except FulgurError as error:
            raise api_error(error, self._backend.name) from None
        finally:
            self.cancel()
            self._ended = True

    async def _start(self) -> None:
        backend = self._backend
        tokenizer = backend.prompts.tokenizer
        stops: tuple[int, ...] = ()
        if self._turn is None:
            assert isinstance(self._asked, Completion)
            self._prompt = await backend.raw_prompt(self._asked)
            stops = backend.stop_tokens()
        else:
            await check_grammars(self._turn, self._constraint, backend.compiler)
            self._prompt = await backend.prompt(self._turn, thinking=self._constraint is None)
            if edit_item(self._turn):
                stops = backend.stop_tokens()
            elif self._constraint is None or self._constraint.call is None:
                self._splitter = self._new_splitter(self._prompt.text)
        if self._constraint is not None and self._turn is not None:
            # Some templates always open the reasoning: the constrained text comes after it.
            ended = reasoning_end(self._prompt.text)
            self._prompt = with_tail(self._prompt, ended + self._constraint.tail, tokenizer)
            if self._constraint.call is None:
                format = self._constraint.format or backend.prompts.format
                self._splitter = splitter_for(format, tools=self._turn.tools)
                self._splitter.feed(self._constraint.tail)
        limit = backend.capabilities.context
        if len(self._prompt.tokens) >= limit:
            raise ContextLengthExceeded(f"the input has {len(self._prompt.tokens)} tokens; the context holds {limit}")
        if not self._prompt.tokens:
            raise InvalidRequest("the input is empty")
        grammar = self._constraint.grammar if self._constraint is not None else None
        self._submit(self._prompt, grammar, stops)

    def _submit(self, prompt: Prompt, grammar: GrammarSpec | None, stops: tuple[int, ...]) -> None:
        backend = self._backend
        tokenizer = backend.prompts.tokenizer
        edit = edit_item(self._turn)
        prediction = self._turn.prediction if self._turn is not None and not edit else edit.get("region")
        visible = set(marker_tokens(backend.prompts.format, tokenizer))
        if edit:  # the edit format's answers are told apart by these
            visible |= {token for mark in (NOEDIT, CALL) if (token := tokenizer.token_id(mark)) is not None}
        self._visible = tuple(sorted(visible))
        request = GenerateRequest(
            prompt.tokens,
            sampling_params(self._sampling(), backend, prompt, grammar, stops),
            draft_source=tokenizer.encode(prediction, special=False, continuation=True) if prediction else None,
            visible_tokens=self._visible,
            owner=self._asked.owner,
        )
        self._submitted = time.perf_counter()
        self._engine = backend.submit(request, self._asked)
        if self._cancelled:
            self._engine.cancel()

    def stop(self, reason: str) -> None:
        """Take no more tokens; what the engine generates until it hears of this is not used.

        While a steer is on its way to the engine nothing is cancelled: a cancel after it would end the new direction.
        """
        self._enough = reason
        if self._engine is not None and not self._steers:
            self._engine.cancel()

    def _refused(self) -> None:
        """The engine did not take the oldest steer; its items start a new answer after this one."""
        self._steers.pop(0)
        if self._enough:
            self.stop(self._enough)

    def _sampling(self) -> Sampling:
        """The sampling asked for; a call whose input is generated separately gets the rest of the token limit."""
        sampling = self._asked.sampling
        if sampling.max_tokens is None:
            return sampling
        return replace(sampling, max_tokens=max(1, sampling.max_tokens - self._written))

    def _new_splitter(self, prompt: str) -> Splitter:
        assert self._turn is not None
        return splitter_for(self._backend.prompts.format, tools=self._turn.tools, thinking=opens_reasoning(prompt))

    def _take(self, event: events.Token) -> None:
        self._tokens.append(event.token)
        self._answer.append(event.text)
        self._written = beyond(self._tokens, self._given) if self._given else self._written + 1
        if self._logprobs is not None and event.logprob is not None:
            self.log_probability += event.logprob.logprob
            self.steps.append(Step(event.token, event.logprob.logprob, event.logprob.top))
            self._logprobs.append(logprob_object(event, self._backend.prompts.tokenizer.token_bytes))

    def _split(self, text: str, call: CallStart | None) -> Iterable[Part]:
        return (CallDelta(text),) if call is not None else self._pass_on(self._splitter.feed(text))

    def _pass_on(self, found: list[Part]) -> Iterator[Part]:
        """Pass on what the splitter found, with what only this side knows: log-probabilities and the tools offered."""
        for part in found:
            if isinstance(part, TextDelta):
                if self._logprobs is not None:
                    part.logprobs, self._logprobs = self._logprobs, []
            elif isinstance(part, ReasoningDelta):
                self._usage.reasoning_tokens += 1
            elif isinstance(part, CallStart):
                self._calls += 1
                tool = self._tools.get(part.name)
                part = call_start(tool) if tool is not None else part
                self._custom = [] if part.custom else None
            elif isinstance(part, CallDelta) and self._custom is not None:
                self._custom.append(part.text)
                continue
            elif isinstance(part, CallEnd) and self._custom is not None:
                yield CallDelta(custom_input("".join(self._custom)))
            elif isinstance(part, Malformed) and not part.in_call:
                part = TextDelta(part.text)
            yield part

    def _steered(self) -> Steered:
        """The engine continues after the steer: what was written so far is now part of the cached input."""
        items, steer = self._steers.pop(0)
        old = self._usage
        old.output_tokens = self._written
        held = old.input_tokens + self._written
        self._answer.append(steer.text)
        self._tokens += steer.tokens
        self._usage = Usage(held + len(steer.tokens), held)
        self._written, self._enough = 0, ""
        if self._turn is not None and self._backend.prompts.template is not None:
            self._splitter = self._new_splitter(steer.text)
        return Steered(items, old, Begin(self._usage.input_tokens, held))

    def _finish(self, event: events.Finished, call: CallStart | None) -> Iterable[Part]:
        if event.text:
            self._answer.append(event.text)
            yield from self._split(event.text, call)
        if call is None and self._enough != "stop":
            yield from self._pass_on(self._splitter.finish())
        elif call is not None:
            yield _end_of_call(event)
        if event.reason == "error":
            raise FulgurError(event.message or "The engine failed.")
        usage = self._usage
        usage.output_tokens = self._written
        usage.draft_tokens, usage.accepted_tokens = event.usage.draft_tokens, event.usage.accepted_tokens
        usage.seconds = time.perf_counter() - self._submitted
        self._remember(event)
        reason: str = event.reason if event.reason in ("length", "cancelled") else "stop"
        if self._enough and not self._cancelled:
            reason = self._enough
        ended_by = self._stop_text() if reason == "stop" else ""
        yield Finish("tool_calls" if reason == "stop" and self._calls else reason, usage, ended_by)

    def _stop_text(self) -> str:
        """The stop string that ended the answer; empty when the model ended it."""
        stops = self._asked.sampling.stop
        if not stops or not self._written:
            return ""
        decoder = StreamDecoder(self._backend.prompts.tokenizer, keep=self._visible, continuation=True)
        text = "".join(map(decoder.feed, self._tokens[-self._written :]))
        found = [(text.find(stop), len(stop), stop) for stop in stops if stop and stop in text]
        return min(found)[2] if found else ""

    def _remember(self, event: events.Finished) -> None:
        """Keep the tokens for the next turn, without the one that ended the answer (the template writes it)."""
        if self._turn is None or self._constraint is not None:
            return
        tokens = self._tokens[:-1] if event.reason == "stop" and self._tokens else self._tokens
        self._backend.prompts.keep(self._turn.conversation, self._prompt, "".join(self._answer), tokens)

    def _grammar_of(self, start: CallStart) -> GrammarSpec | None:
        tool = self._tools.get(start.name)
        return own_grammar(tool) if tool is not None else None

    def _up_to_the_input(self, start: CallStart) -> list[int]:
        """The tokens up to where the call's input begins; the JSON of a function may have gone further already."""
        written, format = "".join(self._answer), self._backend.prompts.format
        at = -1 if format == "harmony" else written.rfind(MISTRAL_CALL if format == "mistral" else TOOL_CALL)
        if start.custom or at < 0:
            return self._tokens
        written = written[:at] + call_opening(format, start.name)
        return self._backend.prompts.tokenizer.encode(written, continuation=True)

    async def _custom_input(self, start: CallStart, grammar: GrammarSpec) -> AsyncIterator[Part]:
        """The model has begun to call a tool that has a grammar: generate its input under that grammar."""
        assert self._engine is not None
        self._engine.cancel()
        self._constraint = Constraint(grammar)
        self._submit(Prompt("", self._prompt.tokens + self._up_to_the_input(start)), grammar, ())
        async for event in self._engine:
            if isinstance(event, events.Token):
                self._written += 1
                if event.text:
                    yield CallDelta(event.text)
            elif isinstance(event, events.Finished):
                self._ended = True
                if event.text:
                    yield CallDelta(event.text)
                yield _end_of_call(event)
                self._usage.output_tokens = self._written
                reason = event.reason if event.reason in ("length", "cancelled") else "tool_calls"
                yield Finish(reason, self._usage)


def _end_of_call(event: events.Finished) -> Part:
    """How a call ends whose input was generated under a grammar."""
    return CallEnd() if event.reason == "stop" else Malformed("", "the answer ended inside the call", in_call=True)
