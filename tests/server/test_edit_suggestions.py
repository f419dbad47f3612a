"""`POST /v1/edits/suggest` with the embedded model: edits of buffers that are not on disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from live_server import LiveServer

from fulgur.workspace.folders import embedded_models

pytestmark = pytest.mark.skipif(not embedded_models(), reason="this checkout has no embedded model")

BEFORE = """\
def scaled(values, factor):
    found = []
    for value in values:
        found.append(value * factor)
    return found, factor
"""
AFTER = BEFORE.replace("factor):", "ratio):")


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with LiveServer(folder=embedded_models()[-1]) as server:
        yield server


async def ask(live: LiveServer, **body: Any) -> dict[str, Any]:
    given = {"model": "local", "path": "src/shop.py", "position": {"line": 1, "character": 4}, **body}
    async with aiohttp.ClientSession() as session, session.post(f"{live.base_url}/edits/suggest", json=given) as answer:
        return {"status": answer.status, **await answer.json()}


def applied(text: str, suggestions: list[dict[str, Any]]) -> str:
    """The text with all suggestions taken, as an editor takes them: from the last line up."""
    lines = text.splitlines(keepends=True)
    edits = [edit for one in suggestions for edit in one["edits"]]
    for edit in sorted(edits, key=lambda edit: -edit["range"]["start"]["line"]):
        place = edit["range"]
        lines[place["start"]["line"] : place["end"]["line"]] = [edit["newText"]]
    return "".join(lines)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
async def test_what_follows_from_a_change_in_a_buffer(live: LiveServer, newline: str) -> None:
    text = AFTER.replace("\n", newline)
    told = await ask(live, text=text, previous=BEFORE.replace("\n", newline))
    assert applied(text, told["suggestions"]) == BEFORE.replace("factor", "ratio").replace("\n", newline)
    first = told["suggestions"][0]
    assert first["position"] == {"line": 3, "character": 0} and first["path"] == "src/shop.py" and first["id"]


async def test_an_instruction_changes_the_selected_lines(live: LiveServer) -> None:
    place = {"start": {"line": 0, "character": 0}, "end": {"line": 5, "character": 0}}
    told = await ask(live, text=BEFORE, instruction="rename factor to ratio", range=place)
    assert applied(BEFORE, told["suggestions"]) == BEFORE.replace("factor", "ratio")
    assert told["usage"]["completion_tokens"] == 0  # it is read without the model


async def test_nothing_comes_with_a_reason(live: LiveServer) -> None:
    told = await ask(live, text=BEFORE, previous=BEFORE)
    assert told["suggestions"] == [] and "no recent change to continue from" in told["reason"]
    told = await ask(live, text="x = 1\n", previous="y = 1\n")
    assert told["suggestions"] == [] and told["reason"]
    told = await ask(live, text="", previous="y = 1\n")
    assert told["suggestions"] == [] and told["reason"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "x", "previous": "y", "instruction": "z"}, "previous"),
        ({"text": "x"}, "previous"),
        ({"text": "x", "previous": "y", "path": ""}, "path"),
        ({"text": "x", "previous": "y", "position": {"line": -1}}, "position.line"),
        ({"text": 3, "previous": "y"}, "text"),
        ({"text": "a" * (3 << 20), "previous": "y"}, "text"),
    ],
)
async def test_wrong_requests_name_the_field(live: LiveServer, body: dict[str, Any], param: str) -> None:
    told = await ask(live, **body)
    assert told["status"] == 400 and told["error"]["param"] == param


async def test_names_of_files_lead_nowhere(live: LiveServer) -> None:
    for path in ("../../../etc/passwd", "/etc/passwd", "..\\..\\x.py", "src/../../x.py"):
        told = await ask(live, text=AFTER, previous=BEFORE, path=path)
        assert told["status"] == 200


async def test_whoever_hangs_up_leaves_nothing_running(live: LiveServer) -> None:
    long = "".join(f"def f{n}(result):\n    return result + {n}\n\n\n" for n in range(300))
    for _ in range(5):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ask(live, text=long.replace("result)", "amount)", 1), previous=long), 0.02)
    assert (await ask(live, text=AFTER, previous=BEFORE))["suggestions"]
