"""The model behind the commands: an embedded one or a folder, served by the local server, which starts on demand."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fulgur.client import once
from fulgur.client.once import LocalServer
from fulgur.errors import FulgurError, UsageError
from fulgur.workspace.folders import embedded_models, embedded_name, home

ABILITIES = (
    "rename names and parameters, add or remove parameters, extract or inline variables, and change type hints, "
    "docstrings, decorators, guards, try/except, logging, imports, f-strings, comprehensions, early returns, "
    "ternaries, with, enumerate, any/all, dict.get, defaults, values, list and dict items, enum members, "
    "dataclass fields, await/async, quotes, comments and comparisons"
)
BIGGER = "For more, use a larger model: `fulgur models fit` lists those that fit this machine, and -m FOLDER names one."

LOGPROBS = "message.output_text.logprobs"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Answer:
    """What the model wrote (special tokens spelled out), and what it cost."""

    text: str
    finished: bool  # False: it was cut off
    prompt_tokens: int
    tokens: int
    accepted: int  # of those tokens, accepted from a draft
    seconds: float  # in the engine, including the prompt
    probability: float | None = None  # of the whole text, where known

    def speed(self) -> str:
        """`410 + 96 tokens in 41 ms · 2,300 tok/s (raw 880)`; raw excludes tokens accepted from a draft."""
        total = f"{self.prompt_tokens} + {self.tokens} tokens"
        if not self.seconds:
            return total
        rate, raw = (count / self.seconds for count in (self.tokens, self.tokens - self.accepted))
        return f"{total} in {self.seconds * 1e3:.0f} ms · {rate:,.0f} tok/s (raw {raw:,.0f})"


def model_folder(name: str | None) -> Path:
    """An embedded model by name (fulgur-60m or 60M), a folder or .gguf file that was named, or the default model."""
    folders = embedded_models()
    if name is not None:
        # Embedded models win over a folder of that name in the current project; `./30M` means the folder.
        if own := [folder for folder in folders if name.lower() in (folder.name.lower(), embedded_name(folder))]:
            return own[0]
        if Path(name).exists():
            return Path(name)
        found = [folder for folder in folders if name.lower() in folder.name.lower()]
        if found:
            return found[0]
        known = ", ".join(embedded_name(folder) for folder in folders) or "none"
        raise UsageError(f"there is no model {name}", hint=f"Give a folder, or one of the embedded models: {known}.")
    if not folders:
        raise FulgurError(
            "no embedded model is installed",
            hint="Install a release wheel, train one (`lab/recipes/embedded.sh`), or name a model folder with -m.",
        )
    return folders[0]


class Model:
    """Queries the server that all sessions on this machine share, or a dedicated one for a model it does not have."""

    def __init__(self, name: str | None = None) -> None:
        self.folder = model_folder(name).resolve()
        self._own = self.folder not in [folder.resolve() for folder in embedded_models()]

    def complete(self, path: str, prefix: str, suffix: str, max_tokens: int, *, one_line: bool, **more: Any) -> Answer:
        """The text between prefix and suffix, to the end of the line or further; `more` goes into the request."""
        body: dict[str, Any] = {"prompt": prefix, "suffix": suffix, "path": path, "max_tokens": max_tokens, **more}
        body |= {"stop": ["\n"]} if one_line else {}
        data = self._with_server(lambda url, name: once.post(url, "/completions", {"model": name, **body}))
        [choice], usage = data["choices"], data["usage"]
        accepted = usage["completion_tokens_details"].get("accepted_prediction_tokens") or 0
        counts = usage["prompt_tokens"], usage["completion_tokens"], accepted
        return Answer(choice["text"], choice["finish_reason"] == "stop", *counts, usage.get("seconds", 0.0))

    def rewrite(self, item: dict[str, Any]) -> Answer:
        """The answer to an `edit` item."""
        return _answer(self._with_server(lambda url, name: once.post(url, "/responses", _create(name, item))))

    def rewrite_all(self, items: Sequence[dict[str, Any]]) -> list[Answer]:
        """The answers to several items, sent in parallel over one socket; the engine batches them."""
        import asyncio

        return self._with_server(lambda url, name: asyncio.run(_together(url, name, items)))

    def _with_server(self, ask: Callable[[str, str], Result]) -> Result:
        """Call `ask` with the address of a server that has the model, and the model's name there."""
        if not self._own:
            name = self.folder.name.lower()
            try:
                return _reached(LocalServer(home()), name if name.startswith("fulgur") else f"fulgur-{name}", ask)
            except FulgurError as error:
                # The user's server.toml serves other models, or requires a key.
                if getattr(error, "code", "") != "model_not_found" and getattr(error, "status", 0) not in (401, 403):
                    raise
        from hashlib import sha256

        own = home() / "models" / sha256(str(self.folder).encode()).hexdigest()[:12]
        server = LocalServer(own, port=0, model=self.folder)
        return _reached(server, self.folder.stem or self.folder.name, ask)


def _reached(server: LocalServer, name: str, ask: Callable[[str, str], Result]) -> Result:
    """Query the running server, or start one first."""
    if url := once.running(server.home):
        with contextlib.suppress(OSError):  # it has stopped since
            return ask(url, name)
    import asyncio  # only to start a server: importing it takes longer than an answer

    from fulgur.client.local import ensure_server

    try:
        return ask(asyncio.run(ensure_server(server)), name)
    except OSError as error:
        raise FulgurError(f"the connection to the local server failed: {error}") from None


async def _together(url: str, name: str, items: Sequence[dict[str, Any]]) -> list[Answer]:
    import asyncio

    import msgspec

    from fulgur.client import Connection
    from fulgur.protocol.errors import ApiError

    async def answer(lane: int, item: dict[str, Any]) -> Answer:
        stream = await connection.create(_create(name, item), lane=f"edit-{lane}")
        return _answer(msgspec.to_builtins(await stream.final()))

    try:
        connection = await Connection.open(url)
    except ApiError:
        raise
    except FulgurError as error:
        raise ConnectionError(error.message) from None
    try:
        return await asyncio.gather(*(answer(lane, item) for lane, item in enumerate(items)))
    finally:
        await connection.close()


def _create(model: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "input": [item], "temperature": 0, "store": False, "include": [LOGPROBS]}


def parts_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The content parts of all output items of a response."""
    return [part for item in response["output"] for part in item.get("content") or ()]


def probability_of(parts: Iterable[dict[str, Any]]) -> float | None:
    """The probability of a text, from the log-probabilities of its tokens; None when there are none."""
    tokens = [token["logprob"] for part in parts for token in part.get("logprobs") or ()]
    return math.exp(sum(tokens)) if tokens else None


def _answer(response: dict[str, Any]) -> Answer:
    if response["status"] == "failed":
        raise FulgurError(str((response.get("error") or {}).get("message") or "the model failed"))
    parts = parts_of(response)
    text = "".join(part["text"] for part in parts)
    usage = response["usage"]
    accepted = usage["output_tokens_details"].get("accepted_prediction_tokens") or 0
    counts = usage["input_tokens"], usage["output_tokens"], accepted
    probability = probability_of(parts)
    return Answer(text, response["status"] == "completed", *counts, usage.get("seconds", 0.0), probability)
