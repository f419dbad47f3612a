"""The Grafana board asks for metrics that the server has, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import aiohttp
from serving import script, serving, text

from fulgur.server.metrics import HELP

BOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


async def test_every_panel_shows_a_metric_that_there_is() -> None:
    asked = [target["expr"] for panel in json.loads(BOARD.read_text())["panels"] for target in panel["targets"]]
    names = {name for query in asked for name in re.findall(r"fulgur_\w+", query)}
    assert {re.sub(r"_bucket$", "", name) for name in names} <= set(HELP)
    async with serving(script(text("a b c"))) as running, aiohttp.ClientSession(running.base_url + "/") as session:
        async with session.post("responses", json={"model": "m", "input": "x"}) as answer:
            assert answer.status == 200
        async with session.get("/metrics") as answer:
            lines = (await answer.text()).splitlines()
    for query in asked:
        for labels, name in re.findall(r"sum by \(([\w, ]+)\) \(rate\((\w+)\[", query):
            shown = [line for line in lines if line.startswith(f"{name}{{")]
            assert all(f'{label}="' in line for line in shown for label in labels.split(", ")), (name, labels, shown)
