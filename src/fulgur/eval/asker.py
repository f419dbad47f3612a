"""An embedded model in this process, asked many prompts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fulgur.engine.events import Finished, Token
from fulgur.engine.load import EngineOptions, open_engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError
from fulgur.text.code_prompt import CodePrompt, trained_suffix_first
from fulgur.text.edit_format import END, EOS, encode_pieces
from fulgur.workspace.folders import embedded_models


@dataclass(frozen=True)
class Reply:
    """What the model wrote, special tokens spelled out."""

    text: str
    tokens: int
    accepted: int  # of these, drafted ones


def find_model(name: str) -> Path:
    """A model folder, or an embedded model by its name."""
    shipped = {folder.name.lower(): folder for folder in embedded_models()}
    folder = Path(name) if Path(name).exists() else shipped.get(name.lower())
    if folder is None:
        known = ", ".join(found.name for found in shipped.values()) or "none"
        raise FulgurError(f"there is no model {name}", hint=f"Give a folder, or one of the embedded models: {known}.")
    return folder


class Asker:
    """An engine over one model that knows the edit format."""

    def __init__(self, folder: Path, *, kv_tokens: int | None = None) -> None:
        self.folder = folder
        self.engine, _ = open_engine(EngineOptions(folder, kv_tokens=kv_tokens))
        self.tokenizer = self.engine.tokenizer
        stops = [self.tokenizer.token_id(token) for token in (END, EOS)]
        if None in stops:
            raise FulgurError(f"{folder.name} does not know the edit format", hint="Name an embedded model.")
        self.stops = tuple(token for token in stops if token is not None)
        self.suffix_first = trained_suffix_first(folder)

    @property
    def context(self) -> int:
        return self.engine.context

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, special=False))

    def ask(self, prompts: Sequence[CodePrompt]) -> list[Reply]:
        """Answers in the order of the prompts."""
        replies = self._generate(prompts)
        again: dict[int, CodePrompt] = {}
        for index, prompt in enumerate(prompts):
            if prompt.plain is not None and not replies[index].text.startswith(prompt.begins):
                again[index] = prompt.plain
            elif prompt.begins:
                replies[index] = replace(replies[index], text=replies[index].text[len(prompt.begins) :])
        for index, reply in zip(again, self._generate(list(again.values())), strict=True):
            replies[index] = reply
        return replies

    def _generate(self, prompts: Sequence[CodePrompt]) -> list[Reply]:
        order: dict[str, int] = {}
        for index, prompt in enumerate(prompts):
            source = None if prompt.source is None else self.tokenizer.encode(prompt.source, special=False)
            stop = ("\n",) if prompt.one_line else ()
            params = SamplingParams(max_tokens=prompt.max_tokens, stop_tokens=self.stops, stop=stop)
            tokens = encode_pieces(self.tokenizer, prompt.pieces)
            order[self.engine.submit(GenerateRequest(tokens, params, draft_source=source))] = index
        written: list[list[int]] = [[] for _ in prompts]
        replies: dict[int, Reply] = {}
        while len(replies) < len(prompts):
            for event in self.engine.step():
                if isinstance(event, Token):
                    written[order[event.request_id]].append(event.token)
                elif isinstance(event, Finished):
                    if event.reason == "error":
                        raise FulgurError(event.message or "the engine failed")
                    index, usage = order[event.request_id], event.usage
                    text = self.text(written[index])
                    if prompts[index].one_line:
                        text = text.split("\n", 1)[0]
                    replies[index] = Reply(text, usage.completion_tokens, usage.accepted_tokens)
        return [replies[index] for index in range(len(prompts))]

    def text(self, tokens: Sequence[int]) -> str:
        """An answer's text without its end."""
        return self.tokenizer.decode([token for token in tokens if token not in self.stops], skip_special=False)
