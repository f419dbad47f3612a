"""The one interface of a backend: a turn goes in, the parts of an answer (`text/parts.py`) come out.

An error is raised from the iterator (ApiError when the client can act on it).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fulgur.protocol.items import Item
from fulgur.text.parts import Part, Usage

if TYPE_CHECKING:
    from fulgur.server.live.base import Live

Tool = dict[str, Any]
T = TypeVar("T")
LOOK_BACK = 5  # parts of a conversation: the last turn's input and output, and a steer between


class Conversation:
    """The items of a conversation, as a chain of what each turn added: a warm turn costs only its own items.

    `memo` belongs to the backends: it caches what they computed for this prefix, such as its tokens.
    """

    __slots__ = ("items", "length", "memo", "parent", "tools")

    def __init__(self, items: list[Item], parent: Conversation | None = None) -> None:
        self.parent = parent
        self.items = items
        self.length: int = len(items) + (parent.length if parent else 0)
        self.memo: dict[str, Any] = {}
        # Tools offered inside the input (`additional_tools`) stay offered in the turns that follow.
        offered = [tool for item in items if item.get("type") == "additional_tools" for tool in item["tools"]]
        self.tools: list[Tool] = offered or (parent.tools if parent else [])

    def extend(self, items: list[Item]) -> Conversation:
        return Conversation(items, self)

    def chain(self) -> list[Conversation]:
        """The parts from the oldest to this one."""
        parts: list[Conversation] = []
        part: Conversation | None = self
        while part is not None:
            parts.append(part)
            part = part.parent
        parts.reverse()
        return parts

    def size(self) -> int:
        """The approximate size in bytes; each part is measured once."""
        return self.fold("size with all before", 0, lambda before, part: before + part.own_size())

    def own_size(self) -> int:
        if "size" not in self.memo:
            self.memo["size"] = _size(self.items)
        return int(self.memo["size"])

    def fold(self, key: str, start: T, step: Callable[[T, Conversation], T]) -> T:
        """Fold `step` over the chain, from the oldest part on; each part is computed once."""
        fresh: list[Conversation] = []
        part: Conversation | None = self
        while part is not None and key not in part.memo:
            fresh.append(part)
            part = part.parent
        value: T = start if part is None else part.memo[key]
        for part in reversed(fresh):
            value = part.memo[key] = step(value, part)
        return value

    def forget(self, key: str) -> None:
        """Drop what older parts hold under a key whose values each cover all parts before them."""
        part: Conversation | None = self
        steps = 0
        while part is not None and (steps < 2 * LOOK_BACK or key in part.memo):
            if steps >= LOOK_BACK:
                part.memo.pop(key, None)
            part, steps = part.parent, steps + 1

    def recent(self, key: str) -> Iterator[Any]:
        """What this part and those just before it hold under a key, the newest first."""
        part: Conversation | None = self
        for _ in range(LOOK_BACK):
            if part is None:
                return
            if key in part.memo:
                yield part.memo[key]
            part = part.parent

    def all(self) -> list[Item]:
        return [item for part in self.chain() for item in part.items]

    def last(self) -> Item | None:
        part: Conversation | None = self
        while part is not None:
            if part.items:
                return part.items[-1]
            part = part.parent
        return None


def _size(value: Any) -> int:
    total = 0
    todo = [value]
    while todo:
        value = todo.pop()
        total += 64
        if isinstance(value, str):
            total += len(value) if value.isascii() else 4 * len(value)
        elif isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
    return total


EMPTY = Conversation([])


@dataclass
class Sampling:
    """Sampling settings; None means the model's own default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    begins: str = ""  # the answer starts with this text, which is not written again
    weigh_begins: bool = False  # its log-probability counts too


@dataclass
class Turn:
    """What a model is asked to answer."""

    conversation: Conversation
    instructions: str | None = None
    tools: list[Tool] = field(default_factory=list)  # function and custom tools; a namespaced one has "namespace"
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    sampling: Sampling = field(default_factory=Sampling)
    hosted: list[Tool] = field(default_factory=list)  # that the upstream hosts, passed on unchanged
    format: dict[str, Any] | None = None  # text.format: json_schema, json_object; ours: regex, lark
    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    verbosity: str | None = None
    prediction: str | None = None  # text the answer is expected to resemble: the draft of the edit drafter
    service_tier: str | None = None
    cache_key: str | None = None
    template_values: dict[str, Any] = field(default_factory=dict)  # for the model's chat template
    passed: dict[str, Any] = field(default_factory=dict)  # fields of the request that only its upstream knows
    owner: str = ""  # whose prefix cache is used


@dataclass
class Completion:
    """A raw prompt to continue; with `suffix`, the text between the two is wanted."""

    prompt: str | list[int]
    suffix: str | None = None
    path: str | None = None  # the file's name, for models that were trained with one
    sampling: Sampling = field(default_factory=Sampling)
    passed: dict[str, Any] = field(default_factory=dict)  # fields of the request that only its upstream knows
    owner: str = ""
    min_probability: float | None = None  # it ends where the model is less sure; None: the model's own limit


@dataclass(frozen=True)
class Capabilities:
    """What a model can be asked for."""

    context: int
    chat: bool = True
    tools: bool = True
    fim: bool = False
    edit: bool = False
    steering: bool = True  # at a token, not only at an item's end
    grammar: bool = False  # structured output is enforced, not hoped for
    reasoning: bool = False
    vision: bool = False
    logprobs: bool = False


class Generation(ABC):
    """One running answer. `more`: the next part is already here, so both can be sent in one write."""

    more: bool = False

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Part]: ...

    @abstractmethod
    def cancel(self) -> None:
        """Stop at the next token; the iterator ends with `Finish("cancelled")`."""

    @abstractmethod
    def steer(self, items: list[Item]) -> bool:
        """Stop at the next token, append the items, continue. False when it is too late: the answer has ended."""


class Backend(ABC):
    """A model that can be asked."""

    name: str = ""  # the model's name
    kind: str = ""  # local, upstream or scripted
    dialects: frozenset[str] = frozenset()  # of an upstream: the APIs whose requests it reads as they are
    capabilities: Capabilities
    default_temperature: float = 1.0  # used, and named in the response, when the request has none

    async def describe(self) -> None:  # noqa: B027
        """Find out the capabilities, if that needs a look at the model; cheaper than `start`."""

    def share(self, live: Live) -> None:  # noqa: B027
        """Take the live state, which may be shared with other servers; called before `start`."""

    async def start(self) -> None:  # noqa: B027 - not every backend has something to start
        """Load what is needed; called once before the first use."""

    async def close(self) -> None:  # noqa: B027
        """Release what `start` acquired."""

    @abstractmethod
    def generate(self, turn: Turn) -> Generation: ...

    @abstractmethod
    def complete(self, completion: Completion) -> Generation: ...

    @abstractmethod
    async def prefill(self, turn: Turn, *, unfinished: bool = False) -> Usage:
        """Bring the turn's input into the cache and answer nothing; `unfinished`: its last message may still grow."""

    @abstractmethod
    async def count(self, turn: Turn) -> int:
        """How many tokens the turn's input is."""
