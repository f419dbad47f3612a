"""`POST /v1/edits/suggest`: edits of an unsaved buffer. The request is shaped like ACP's `nes/suggest`.

With `previous`, the text before the last changes, it suggests the edits that follow from them; with `instruction`, the
edit that it asks for, at `range` or around `position`. Both go through the one editor (`edit/editor.py`), so what is
refused there is refused here, and `reason` says why nothing is suggested. When the client hangs up, the work ends after
the current step.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path, PurePosixPath
from typing import Any

from aiohttp import web

from fulgur.backends.base import Backend, Conversation, Sampling, Turn
from fulgur.edit.checks import NAMES, PARSES, TESTS
from fulgur.edit.document import Document
from fulgur.edit.editor import Proposal, Refusal, Task, propose
from fulgur.edit.model import probability_of
from fulgur.edit.next import Following
from fulgur.edit.region import Target, locate_region
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.request import SuggestRequest
from fulgur.server.answers import json_answer, owner_of, read_request, server_of
from fulgur.server.doors.answer import Count, collect, counted, usage_object
from fulgur.server.registry import require
from fulgur.workspace.diff import changed_runs

# Checks use the file's name only: no file exists below this path, whatever name a client sends.
_NOWHERE = Path("/dev/null")
_LONGEST = 2 << 20


async def suggest(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, SuggestRequest)
    if len(body.text) > _LONGEST:
        raise invalid(f"The text has more than {_LONGEST:,} characters.", "text")
    if (body.previous is None) == (body.instruction is None):
        raise invalid("Send either 'previous' or 'instruction'.", "previous")
    entry = server.models.get(body.model)
    backend = await entry.ready()
    require(entry, "edit", "suggest edits")
    async with counted(request, entry, None) as total:
        owner = server.cache_owner(owner_of(request))
        try:
            document = _document(body)
            found = await (_asked if body.instruction is not None else _following)(
                backend, document, body, owner, total
            )
        except ApiError:
            raise
        except FulgurError as error:
            found = Refusal("", error.message)
        edits = await asyncio.to_thread(_suggestions, body, document, found) if isinstance(found, Proposal) else []
        answer: dict[str, Any] = {"object": "edit_suggestions", "model": body.model, "suggestions": edits}
        if isinstance(found, Refusal):
            answer["reason"] = found.reason
        else:
            answer |= {"checked": [PARSES, NAMES], "unchecked": ["attributes", "parameters", TESTS]}
            if found.notes:
                answer["notes"] = list(found.notes)
        return json_answer({**answer, "usage": usage_object(total)})


def _document(body: SuggestRequest) -> Document:
    name = PurePosixPath(body.path.replace("\\", "/"))
    if not name.name or "\0" in body.path:
        raise invalid("'path' must name a file.", "path")
    return Document.of(_NOWHERE / name.name, str(name).lstrip("/"), body.text.encode("utf-8", "surrogatepass"))


async def _following(
    backend: Backend, document: Document, body: SuggestRequest, owner: str, total: Count
) -> Proposal | Refusal:
    previous = (body.previous or "").replace("\r\n", "\n")
    following = await asyncio.to_thread(Following.of, document, previous)
    if (known := await asyncio.to_thread(following.known)) is not None:
        return known
    # One after the other, the nearest first: an editor shows one edit, and each further prompt would delay it.
    found: Proposal | Refusal = Refusal("", "No next edit.")
    for region in sorted(following.regions, key=lambda one: _distance(one.first_line - 1, body.position.line)):
        text, finished, _ = await _rewritten(backend, following.item(region), owner, total)
        found = await asyncio.to_thread(following.proposal, {region: (text, finished)})
        if isinstance(found, Proposal):
            break
    return found


async def _asked(
    backend: Backend, document: Document, body: SuggestRequest, owner: str, total: Count
) -> Proposal | Refusal:
    start, end = (body.range.start, body.range.end) if body.range is not None else (body.position, body.position)
    last = end.line + 1 - (end.character == 0 and end.line > start.line)  # a selection of whole lines ends on the next
    target = Target(document.path, None, (start.line + 1, last))
    instruction = body.instruction or ""
    region = await asyncio.to_thread(locate_region, document.text, target, instruction)
    task = Task(document, region, instruction)
    if (call := await asyncio.to_thread(task.spelled_out)) is not None:
        return await asyncio.to_thread(propose, task, call)
    said, finished, probability = await _rewritten(backend, task.item(), owner, total)
    if not finished:
        return Refusal("", "the answer was cut off")
    return await asyncio.to_thread(propose, task, said, probability=probability)


async def _rewritten(backend: Backend, item: Any, owner: str, total: Count) -> tuple[str, bool, float | None]:
    """The model's answer to an `edit` item: text, whether it was finished, and its probability."""
    sampling = Sampling(temperature=0, top_logprobs=0)
    answer = await collect(backend.generate(Turn(Conversation([item]), sampling=sampling, owner=owner)))
    total.add(answer.finish.usage)
    return answer.text, answer.finish.reason == "stop", probability_of([{"logprobs": answer.logprobs}])


def _suggestions(body: SuggestRequest, document: Document, found: Proposal) -> list[dict[str, Any]]:
    """One suggestion for each run of changed lines, the one to go to next first."""
    after = document.encode(found.text).decode("utf-8", "surrogatepass")
    old, new = body.text.splitlines(keepends=True), after.splitlines(keepends=True)
    suggestions: list[dict[str, Any]] = []
    for a, b, c, d in changed_runs(old, new):
        text = "".join(new[c:d])
        edit = {"range": {"start": _position(a), "end": _position(b)}, "newText": text}
        name = hashlib.sha256(f"{body.path}:{a}:{''.join(old[a:b])}:{text}".encode(errors="replace")).hexdigest()[:12]
        suggestions.append({"id": name, "kind": "edit", "path": body.path, "edits": [edit], "position": _position(a)})
    suggestions.sort(key=lambda one: _distance(one["position"]["line"], body.position.line))
    return suggestions


def _distance(line: int, here: int) -> tuple[bool, int]:
    """A sort key by which lines below the cursor are nearer than lines above it."""
    return line < here, abs(line - here)


def _position(line: int) -> dict[str, int]:
    return {"line": line, "character": 0}
