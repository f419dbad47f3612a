"""The embedded model in this process: one prompt in, one answer out, with the speeds of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError
from fulgur.text.code_prompt import CodePrompt, completion_request, edit_request, trained_suffix_first
from fulgur.text.edit_format import CALL, END, EOS, NOEDIT, RecentEdit, encode_pieces
from fulgur.workspace.folders import embedded_models

if TYPE_CHECKING:
    from fulgur.engine.engine import Engine

ABILITIES = (
    "rename names and parameters, add or remove parameters, type hints, docstrings, decorators, guards, try/except, "
    "logging, imports, f-strings, comprehensions, early returns, ternaries, with, enumerate, any/all, dict.get, "
    "defaults, values, list and dict items, enum members, dataclass fields, await/async, variables in and out of line, "
    "quotes, comments, comparisons"
)
BIGGER = "For more, serve a larger model (`fulgur serve`, then `fulgur`), or name another one with -m FOLDER."


Ask = CodePrompt


@dataclass(frozen=True)
class Reply:
    """What the model wrote (special tokens spelled out), and what it cost."""

    text: str
    finished: bool  # False: it was cut off at max_tokens
    tokens: int
    accepted: int
    prompt_tokens: int
    seconds: float
    decode_seconds: float
    step_seconds: float  # one step of one token, as the engine measures it

    def speed(self) -> str:
        """`410 + 96 tokens in 41 ms · 3,100 tok/s (raw 1,150)`; raw is what single steps make, without drafts."""
        total = f"{self.prompt_tokens} + {self.tokens} tokens in {self.seconds * 1e3:.0f} ms"
        if self.decode_seconds <= 0 or self.tokens < 2:
            return total
        effective = self.tokens / self.decode_seconds
        return f"{total} · {effective:,.0f} tok/s (raw {1 / self.step_seconds:,.0f})"


def model_folder(name: str | None) -> Path:
    """A folder or .gguf file that was named, one of the embedded models by name (60M, 30M), or the default one."""
    if name is not None and Path(name).exists():
        return Path(name)
    folders = embedded_models()
    if name is not None:
        found = [folder for folder in folders if name.lower() in folder.name.lower()]
        if found:
            return found[0]
        known = ", ".join(folder.name for folder in folders) or "none"
        raise FulgurError(f"there is no model {name}", hint=f"Give a folder, or one of the embedded models: {known}.")
    if not folders:
        raise FulgurError(
            "no embedded model is installed",
            hint="Install a release wheel, train one (`python -m lab.train run`), or name a model folder with -m.",
        )
    return folders[0]


class Embedded:
    """An engine over one model that knows the edit format."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        tokenizer = engine.tokenizer
        ids = [tokenizer.token_id(token) for token in (END, EOS, NOEDIT, CALL)]
        if any(number is None for number in ids):
            raise FulgurError(
                f"{folder.name} does not know the edit format",
                hint="Edits need an embedded model; use other models through `fulgur serve`.",
            )
        self.stops = (ids[0] or 0, ids[1] or 0)
        self.suffix_first = trained_suffix_first(folder)

    @classmethod
    def open(cls, name: str | None = None, *, kv_tokens: int | None = None) -> Embedded:
        from fulgur.engine.load import EngineOptions, open_engine

        folder = model_folder(name)
        engine, _ = open_engine(EngineOptions(folder, kv_tokens=kv_tokens))
        return cls(engine, folder)

    @property
    def context(self) -> int:
        return self.engine.context

    def count(self, text: str) -> int:
        return len(self.engine.tokenizer.encode(text, special=False))

    def edit(
        self,
        path: str,
        above: str,
        region: str,
        below: str,
        instruction: str | None,
        recent: Sequence[RecentEdit] = (),
    ) -> Ask:
        """The prompt for an edit."""
        return edit_request(self.count, self.context, path, above, region, below, instruction, recent)

    def completion(self, path: str, prefix: str, suffix: str, max_tokens: int, *, one_line: bool = False) -> Ask:
        """The prompt for a completion."""
        return completion_request(
            self.count, self.context, path, prefix, suffix, max_tokens,
            one_line=one_line, suffix_first=self.suffix_first,
        )  # fmt: skip

    def ask(self, asks: Sequence[Ask], *, speculate: bool = True) -> list[Reply]:
        """Answer several prompts at once, in order."""
        from fulgur.engine.events import Finished, Token
        from fulgur.engine.params import GenerateRequest, SamplingParams

        began = perf_counter()
        tokenizer = self.engine.tokenizer
        order: dict[str, int] = {}
        for index, ask in enumerate(asks):
            source = None if ask.source is None else tokenizer.encode(ask.source, special=False)
            params = SamplingParams(
                max_tokens=ask.max_tokens, stop_tokens=self.stops, stop=("\n",) if ask.one_line else ()
            )
            prompt = encode_pieces(tokenizer, ask.pieces)
            request = GenerateRequest(prompt, params, draft_source=source, speculate=speculate)
            order[self.engine.submit(request)] = index
        tokens: list[list[int]] = [[] for _ in asks]
        replies: dict[int, Reply] = {}
        while len(replies) < len(asks):
            for event in self.engine.step():
                if isinstance(event, Token):
                    tokens[order[event.request_id]].append(event.token)
                elif isinstance(event, Finished):
                    index, usage = order[event.request_id], event.usage
                    written = [token for token in tokens[index] if token not in self.stops]
                    if event.reason == "error":
                        raise FulgurError(event.message or "the engine failed")
                    text = tokenizer.decode(written, skip_special=False)
                    replies[index] = Reply(
                        text.split("\n", 1)[0] if asks[index].one_line else text,
                        event.reason == "stop",
                        usage.completion_tokens,
                        usage.accepted_tokens,
                        usage.prompt_tokens,
                        perf_counter() - began,
                        usage.decode_seconds,
                        self.engine.cost.seconds(1),
                    )
        again = [i for i, ask in enumerate(asks) if ask.plain and not replies[i].text.startswith(ask.begins)]
        plain = [ask.plain for ask in (asks[i] for i in again) if ask.plain is not None]
        for index, reply in zip(again, self.ask(plain, speculate=speculate) if plain else [], strict=True):
            replies[index] = replace(reply, seconds=perf_counter() - began)
        for index, ask in enumerate(asks):
            if ask.begins and index not in again:
                replies[index] = replace(replies[index], text=replies[index].text[len(ask.begins) :])
        return [replies[index] for index in range(len(asks))]
