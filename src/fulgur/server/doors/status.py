"""The status page at `/`, and the numbers it shows (`/status`, for callers that have a key)."""

from __future__ import annotations

import os
import time
from typing import Any

from aiohttp import web

from fulgur import __version__ as VERSION
from fulgur.server.answers import json_answer, server_of
from fulgur.server.doors.page import page

_BEGAN = time.monotonic()
_ABILITIES = ("chat", "tools", "fim", "edit", "reasoning", "vision")
_BODY = """
<p id="said">Loading…</p>
<p id="ask" hidden><label>Key <input id="key" type="password" autocomplete="off"></label></p>
<table><thead><tr><th>model</th><th>where</th><th>context</th><th>can</th><th>answers</th><th>tokens in (cached)</th>
<th>tokens out</th><th>tok/s</th></tr></thead><tbody id="models"></tbody></table>
<h2>Tokens a second, last two minutes <small id="peak"></small></h2>
<svg id="plot" viewBox="0 0 120 100" preserveAspectRatio="none"><polyline id="line" points=""/></svg>
<p><a href="/docs">API reference</a></p>
"""
_SCRIPT = """
'use strict';
const $ = (id) => document.getElementById(id);
const seen = [];
let last = null;
$('key').addEventListener('change', look);
async function look() {
  const headers = $('key').value ? {Authorization: 'Bearer ' + $('key').value} : {};
  let answer;
  try { answer = await fetch('/status', {headers}); }
  catch (error) { $('said').textContent = 'The server does not answer.'; return; }
  $('ask').hidden = answer.status !== 401 && !$('key').value;
  if (!answer.ok) { $('said').textContent = 'This server requires a key.'; return; }
  const now = await answer.json();
  $('said').textContent = `Fulgur ${now.version}, up ${Math.round(now.seconds)} s; ` +
    `${now.running} answers under way, ${now.queued} waiting, ${now.sockets} sockets.`;
  const total = now.models.reduce((sum, model) => sum + model.output_tokens, 0);
  if (last) seen.push(Math.max(0, total - last.total) / Math.max(0.1, now.seconds - last.seconds));
  last = {total, seconds: now.seconds};
  if (seen.length > 120) seen.shift();
  const top = Math.max(1, ...seen);
  $('peak').textContent = `(peak: ${Math.round(top)})`;
  $('line').setAttribute('points', seen.map((rate, at) => `${at},${100 - 95 * rate / top}`).join(' '));
  $('models').replaceChildren(...now.models.map((model) => {
    const row = document.createElement('tr');
    const cells = [model.name, model.backend, model.context, model.can.join(', '), model.answers,
      `${model.input_tokens} (${model.cached_tokens})`, model.output_tokens, model.tokens_per_second.toFixed(0)];
    for (const value of cells) {
      const cell = document.createElement('td');
      cell.textContent = value;
      if (typeof value === 'number') cell.className = 'n';
      row.append(cell);
    }
    return row;
  }));
}
look();
setInterval(look, 1000);
"""


async def show(request: web.Request) -> web.Response:
    return page("Fulgur", _BODY, _SCRIPT)


async def numbers(request: web.Request) -> web.Response:
    server = server_of(request)
    await server.models.describe()
    metrics = server.metrics

    def of(entry_name: str, what: str) -> float:
        return metrics.get(f"fulgur_{what}_total", model=entry_name)

    models: list[dict[str, Any]] = []
    for name, entry in server.models.entries.items():
        abilities = entry.backend.capabilities
        seconds = of(name, "engine_seconds")
        models.append(
            {
                "name": name,
                "backend": entry.backend.kind,
                "context": abilities.context,
                "can": [ability for ability in _ABILITIES if getattr(abilities, ability)],
                "answers": int(sum(metrics.get("fulgur_responses_total", model=name, status=s) for s in _ENDS)),
                "input_tokens": int(of(name, "input_tokens")),
                "cached_tokens": int(of(name, "cached_tokens")),
                "output_tokens": int(of(name, "output_tokens")),
                "tokens_per_second": of(name, "output_tokens") / seconds if seconds else 0.0,
            }
        )
    running, queued = server.under_way()
    return json_answer(
        {
            "version": VERSION,
            "pid": os.getpid(),
            "seconds": time.monotonic() - _BEGAN,
            "running": running,
            "queued": queued,
            "sockets": len(server.sockets),
            "models": models,
        }
    )


_ENDS = ("completed", "incomplete", "failed", "cancelled")
