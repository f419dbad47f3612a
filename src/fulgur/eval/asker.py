"""An embedded model in this process that answers batches of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fulgur.engine.events import Finished, Token
from fulgur.engine.load import EngineOptions, open_engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError, UsageError
from fulgur.text.code_prompt import CodePrompt, trained_suffix_first
from fulgur.text.edit_format import END, EOS, encode_pieces
from fulgur.text.fim import fim_stop_tokens
from fulgur.text.search import ALTERNATIVES, Branch, Candidate, Step, best, beyond, branches
from fulgur.text.sure import SureText
from fulgur.workspace.folders import embedded_models, embedded_name


@dataclass(frozen=True)
class Reply:
    """The model's answer, with special tokens spelled out."""

    text: str
    tokens: int
    accepted: int  # of these, accepted from drafts
    pieces: tuple[tuple[str, float], ...] = ()  # text pieces, each with the cumulative log-probability
    log_probability: float = 0.0  # of all its tokens; 0.0 if not requested
    ended: bool = True  # not cut off

    def sure(self, least: float) -> str:
        """The part of a line that is shown at this probability limit."""
        text = SureText(least)
        for piece, sure in self.pieces:
            text.add(piece, sure)
        return text.text(self.log_probability, ended=self.ended)


def find_model(name: str) -> Path:
    """The folder of a model, given as a path or as the name of an embedded model."""
    shipped = {embedded_name(folder): folder for folder in embedded_models()}
    folder = Path(name) if Path(name).exists() else shipped.get(name.lower()) or shipped.get(f"fulgur-{name.lower()}")
    if folder is None:
        known = ", ".join(shipped) or "none"
        raise UsageError(f"there is no model {name}", hint=f"Give a folder, or one of the embedded models: {known}.")
    return folder


@dataclass
class _Run:
    """The result of one request."""

    tokens: list[Token] = field(default_factory=list)
    finished: Finished | None = None


class Asker:
    """An engine with one model that knows the edit format."""

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

    def ask(self, prompts: Sequence[CodePrompt], *, search: bool = False) -> list[Reply]:
        """Answers in the order of the prompts; `search` looks for the best lines, as the product does."""
        written = self._run([self._request(prompt, logprobs=ALTERNATIVES if search else 0) for prompt in prompts])
        replies = [self._reply(prompt, run) for prompt, run in zip(prompts, written, strict=True)]
        return self._searched(prompts, written, replies) if search else replies

    def _request(self, prompt: CodePrompt, *, logprobs: int) -> GenerateRequest:
        source = None if prompt.source is None else self.tokenizer.encode(prompt.source, special=False)
        params = SamplingParams(
            max_tokens=prompt.max_tokens,
            stop_tokens=self.stops,
            stop=("\n",) if prompt.one_line else (),
            begins=prompt.begins,
            logprobs=logprobs if prompt.one_line else None,
        )
        return GenerateRequest(encode_pieces(self.tokenizer, prompt.pieces), params, draft_source=source)

    def _run(self, requests: Sequence[GenerateRequest]) -> list[_Run]:
        order = {self.engine.submit(request): index for index, request in enumerate(requests)}
        runs = [_Run() for _ in requests]
        left = len(requests)
        while left:
            for event in self.engine.step():
                if isinstance(event, Token):
                    runs[order[event.request_id]].tokens.append(event)
                elif isinstance(event, Finished):
                    if event.reason == "error":
                        raise FulgurError(event.message or "the engine failed")
                    runs[order[event.request_id]].finished = event
                    left -= 1
        return runs

    def _reply(self, prompt: CodePrompt, run: _Run) -> Reply:
        assert run.finished is not None
        text = self.text([event.token for event in run.tokens])[len(prompt.begins) :]
        pieces: list[tuple[str, float]] = []
        sure = 0.0
        for event in run.tokens:
            if event.logprob is not None:
                sure += event.logprob.logprob
                pieces.append((event.text, sure))
        pieces.append((run.finished.text, sure))  # text that the stream held back
        usage = run.finished.usage
        return Reply(
            text.split("\n", 1)[0] if prompt.one_line else text,
            usage.completion_tokens,
            usage.accepted_tokens,
            tuple(pieces),
            sure,
            run.finished.reason == "stop",
        )

    def _searched(self, prompts: Sequence[CodePrompt], runs: list[_Run], replies: list[Reply]) -> list[Reply]:
        """The replies, each with the best line of its search."""
        found = [[Candidate(reply.text, reply.log_probability)] for reply in replies]
        open_ends: list[tuple[int, Branch, GenerateRequest]] = []
        for index, (prompt, run) in enumerate(zip(prompts, runs, strict=True)):
            steps = [Step(e.token, e.logprob.logprob, e.logprob.top) for e in run.tokens if e.logprob is not None]
            stops = fim_stop_tokens(self.tokenizer)
            given = self.tokenizer.encode(prompt.begins, special=False, continuation=True) if prompt.begins else []
            for branch in branches(steps, prompt.begins, self._decode, stops) if replies[index].ended else ():
                if branch.ended:
                    found[index].append(Candidate(branch.text, branch.log_probability))
                    continue
                left = prompt.max_tokens - beyond(branch.tokens, given)
                if left <= 0:
                    continue
                request = self._request(replace(prompt, begins="", max_tokens=left), logprobs=0)
                request.prompt = [*request.prompt, *branch.tokens]
                open_ends.append((index, branch, request))
        ends = self._run([request for _, _, request in open_ends])
        for (index, branch, _), run in zip(open_ends, ends, strict=True):
            end = self._reply(replace(prompts[index], begins=""), run)
            if end.ended:
                found[index].append(Candidate(branch.text + end.text, branch.log_probability + end.log_probability))
        forward = self._read_forward(prompts, [{one.text for one in candidates} for candidates in found])
        return [
            replace(reply, text=best(candidates, *prompt.around, prompt.path, read).text)
            for prompt, reply, candidates, read in zip(prompts, replies, found, forward, strict=True)
        ]

    def _read_forward(self, prompts: Sequence[CodePrompt], lines: Sequence[set[str]]) -> list[dict[str, float]]:
        """For each prompt, the log-probability of each line together with the following lines.

        See `backends/local_completion.py`."""
        asked = [
            (index, line, f"{prompt.begins}{line}{prompt.following}")
            for index, (prompt, some) in enumerate(zip(prompts, lines, strict=True))
            for line in (some if prompt.following and len(some) > 1 else ())
        ]
        requests = [
            GenerateRequest(
                encode_pieces(self.tokenizer, prompts[index].forward),
                SamplingParams(max_tokens=1, logprobs=0, begins=text, weigh_begins=True, stop_tokens=self.stops),
            )
            for index, _, text in asked
        ]
        read: list[dict[str, float]] = [{} for _ in prompts]
        for (index, line, text), run in zip(asked, self._run(requests), strict=True):
            given = len(self.tokenizer.encode(text, special=False, continuation=True))
            weights = [event.logprob.logprob for event in run.tokens if event.logprob is not None]
            read[index][line] = sum(weights[:given])
        return read

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special=False)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer without stop tokens."""
        return self.tokenizer.decode([token for token in tokens if token not in self.stops], skip_special=False)
