"""Encodes turns as prompt tokens, continuing from those of the turn before: a warm turn encodes only what is new."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fulgur.backends.base import Conversation, Turn
from fulgur.backends.messages import Message, chat_tools, open_message, to_messages
from fulgur.engine.errors import ContextLengthExceeded
from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import Item, item_type, text_of
from fulgur.text.prompt import encode_fenced, fence
from fulgur.text.split import detect_format
from fulgur.text.template import ChatTemplate
from fulgur.text.tokenizer import Tokenizer

_LIKELY = 5  # characters per token: few texts have more
_PIECE = 32 << 10
_TEXTS = ("message", "function_call_output", "custom_tool_call_output")
_MARK = "\U000ffff7"  # private use: marks a place in a rendering


@dataclass(frozen=True)
class Prompt:
    """Rendered text and its tokens. `tokens` is `text` encoded, save where the model itself wrote the tokens."""

    text: str
    tokens: list[int]
    room: int | None = None  # the most tokens an answer may have, where the prompt says so


def memo_key(model: str) -> str:
    """Where a conversation's memo holds a model's prompts."""
    return f"local.{model}"


class Prompts:
    """Prompts of one model."""

    def __init__(self, tokenizer: Tokenizer, model: str) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate.of(tokenizer) if tokenizer.chat_template else None
        self.format = detect_format(tokenizer.chat_template or "")
        self._developer = "developer" in (tokenizer.chat_template or "")
        self._key = memo_key(model)
        self._ready_key = f"ready.{model}"

    def of(self, turn: Turn, *, unfinished: bool = False, limit: int | None = None, **extra: Any) -> Prompt:
        """The prompt of a turn; `unfinished` stops at the end of the last user text, which may still grow.

        Raises ContextLengthExceeded for a text of clearly more than `limit` tokens, before all of it is encoded.
        """
        if limit is not None and turn.conversation.own_size() + len(turn.instructions or "") > _LIKELY * limit:
            new = [text_of(item) for item in turn.conversation.items if item_type(item) in _TEXTS]
            self._refuse_too_long("".join([turn.instructions or "", *new]), 0, limit)  # before it is rendered
        return self._go_on(turn.conversation, self._render(turn, unfinished, extra), limit)

    def keep(self, conversation: Conversation, prompt: Prompt, answer: str, tokens: list[int]) -> None:
        """Remember what the model wrote after a prompt: the next turn continues from these very tokens."""
        conversation.memo[self._key] = [
            prompt,
            Prompt(prompt.text + answer, prompt.tokens + tokens),
        ]

    def steer(self, items: list[Item]) -> Prompt:
        """What comes after a partial answer: its end, the steer, and the start of the next answer."""
        asked = {"type": "message", "role": "user", "content": "x"}
        said = {"type": "message", "role": "assistant", "content": _MARK}
        text = self._render(Turn(Conversation([asked, said, *items])), False, {})
        rest = text.partition(_MARK)[2]
        return Prompt(rest, encode_fenced(self.tokenizer, rest, continuation=True))

    def _render(self, turn: Turn, unfinished: bool, extra: dict[str, Any]) -> str:
        if self.template is None:
            raise ApiError(400, "model_not_capable", "The model has no chat template.", param="model")
        messages = to_messages(turn, developer=self._developer)
        if not messages:
            raise ApiError(400, "invalid_prompt", "The input holds nothing that the model can read.", param="input")
        tools = chat_tools(turn.tools) if turn.tool_choice != "none" else []
        partial = open_message(turn.conversation)
        at_mark = partial is not None or (unfinished and bool(messages) and messages[-1]["role"] == "user")
        if at_mark:
            messages[-1] = {**messages[-1], "content": messages[-1]["content"] + _MARK}
        ready = self._ready(turn.conversation, messages)
        text = self.template.render(
            ready, tools=tools or None, add_generation_prompt=not at_mark, prepared=True, **extra
        )
        return text.partition(_MARK)[0] if at_mark else text

    def _ready(self, conversation: Conversation, messages: list[Message]) -> list[Message]:
        """The messages as the template reads them; those of the turn before are reused."""
        key = self._ready_key
        known: list[tuple[Message, Message]] = next(conversation.recent(key), [])
        same = 0
        while same < min(len(known), len(messages)) and known[same][0] is messages[same]:
            same += 1
        new = messages[same:]
        made = map(ChatTemplate.prepared, fence(new, self.tokenizer))
        conversation.memo[key] = [*known[:same], *zip(new, made, strict=True)]
        conversation.forget(key)
        return [made for _, made in conversation.memo[key]]

    def _go_on(self, conversation: Conversation, text: str, limit: int | None) -> Prompt:
        """Encode the text after its longest known prefix."""
        known = self._longest(conversation, text)
        if limit is not None:
            self._refuse_too_long(text, len(known.text) if known is not None else 0, limit)
        if known is None:
            prompt = Prompt(text, encode_fenced(self.tokenizer, text))
        else:
            rest = text[len(known.text) :]
            prompt = Prompt(text, known.tokens + encode_fenced(self.tokenizer, rest, continuation=True))
        conversation.memo.setdefault(self._key, []).append(prompt)
        del conversation.memo[self._key][:-4]
        return prompt

    def _refuse_too_long(self, text: str, start: int, limit: int) -> None:
        """Refuse a text that cannot fit, piece by piece: encoding it all takes seconds, and hundreds of bytes a
        token."""
        if len(text) - start <= _LIKELY * limit + _PIECE:
            return
        tokens = 0
        for at in range(start, len(text), _PIECE):
            tokens += len(self.tokenizer.encode(text[at : at + _PIECE], special=False)) - 2  # a cut may add tokens
            if tokens > limit:
                raise ContextLengthExceeded(f"the input has more than {tokens} tokens; the context holds {limit}")

    def _longest(self, conversation: Conversation, text: str) -> Prompt | None:
        best: Prompt | None = None
        for prompts in conversation.recent(self._key):
            for prompt in prompts:
                if text.startswith(prompt.text) and (best is None or len(prompt.text) > len(best.text)):
                    best = prompt
        conversation.forget(self._key)
        return best


def with_tail(prompt: Prompt, tail: str, tokenizer: Tokenizer) -> Prompt:
    """The prompt followed by `tail`, the beginning of the answer."""
    return replace(prompt, text=prompt.text + tail, tokens=prompt.tokens + tokenizer.encode(tail, continuation=True))
