"""What a caller asks of the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fulgur.engine.errors import InvalidRequest

if TYPE_CHECKING:
    from fulgur.text.grammar import GrammarSpec


@dataclass(slots=True)
class SamplingParams:
    """How the next token is chosen and when to stop. The default is greedy.

    The bias (token, value added to its logit) and the penalties act before the temperature; then min-p, top-k and
    top-p narrow the choice, in this order.
    Presence and frequency count generated tokens; repetition counts the prompt too. `logprobs` asks for the
    log-probability of each token in the model's own distribution (before penalties, grammar and temperature)
    and of that many most likely alternatives. Without a seed a random one is chosen when the request is submitted.
    The answer starts with the text `begins`, which is not reported again (`begin.py`); tokens that only spell it do not
    count. With `weigh_begins` their log-probabilities are the model's own too: how likely it finds the given text.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: GrammarSpec | None = None
    begins: str = ""
    weigh_begins: bool = False

    @property
    def needs_logits(self) -> bool:
        """False for plain greedy decoding, which only needs the runtime's argmax."""
        return self.temperature > 0.0 or self.shifted or self.logprobs is not None or self.constrained

    @property
    def constrained(self) -> bool:
        """Whether only some tokens may be chosen."""
        return self.grammar is not None or bool(self.begins)

    @property
    def shifted(self) -> bool:
        """Whether logits are changed before a token is chosen."""
        return self.penalised or bool(self.logit_bias)

    @property
    def penalised(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def check(self) -> None:
        """Raise InvalidRequest for a value that has no meaning, naming it."""
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(self.temperature >= 0.0, "temperature", self.temperature, "0 or more")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "above 0 and at most 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "between 0 and 1")
        _require(self.repetition_penalty > 0.0, "repetition_penalty", self.repetition_penalty, "above 0")
        _require(self.logprobs is None or 0 <= self.logprobs <= 100, "logprobs", self.logprobs, "between 0 and 100")
        _require(not self.begins or self.grammar is None, "begins", "set", "empty with a grammar")
        _require(all(self.stop), "stop", self.stop, "strings of at least one character")
        _require(all(math.isfinite(bias) for _, bias in self.logit_bias), "logit_bias", "not a number", "finite")
        for name in ("temperature", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            _require(math.isfinite(getattr(self, name)), name, getattr(self, name), "finite")


@dataclass(slots=True)
class GenerateRequest:
    """One prompt and what to do with it.

    `draft_source` holds the tokens of the text being edited (or a predicted output): the drafter follows it.
    `prefill_only` warms the prefix cache and produces nothing. `keep` leaves the sequences alive after they
    finish, so that `steer` may append to them and go on; `cancel` releases them. `visible_tokens` are special tokens
    whose text is shown all the same (the markers that a splitter looks for). Prefixes are shared between requests of
    the same `owner` only: how much of a prompt was in the cache would reveal what others have sent.
    `past` resumes an answer that another engine began: the tokens it had generated, then in turn the tokens of a steer
    and those generated after it. They are not reported again; what follows is what the other engine would have written.
    """

    prompt: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    draft_source: list[int] | None = None
    speculate: bool = True
    prefill_only: bool = False
    keep: bool = False
    visible_tokens: tuple[int, ...] = ()
    owner: str = ""
    past: list[list[int]] = field(default_factory=list)

    def check(self, vocab_size: int) -> None:
        """Raise InvalidRequest unless the engine can serve this (the context's length is checked by the engine)."""
        self.params.check()
        if not self.prompt:
            raise InvalidRequest("prompt is empty; it must have at least one token")
        _require(1 <= self.n <= 256, "n", self.n, "between 1 and 256")
        _require(self.n == 1 or not self.past, "n", self.n, "1 when an answer is resumed")
        check_tokens(self.prompt, vocab_size, "prompt")
        for tokens in self.past:
            check_tokens(tokens, vocab_size, "past")
        check_tokens([token for token, _ in self.params.logit_bias], vocab_size, "logit_bias")


def check_tokens(tokens: list[int], vocab_size: int, name: str) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        raise InvalidRequest(f"{name} contains token {wrong}, outside the vocabulary (0 to {vocab_size - 1})")


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name} is {value}; it must be {expected}")
