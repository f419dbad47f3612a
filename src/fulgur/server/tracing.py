"""OpenTelemetry spans of answers, sent to a collector as OTLP in JSON over HTTP. Off unless `server.otlp` names one.

An answer is one span with the semantic conventions' `gen_ai` attributes; `queue`, `prefill`, `decode` and `commit` are
its children. It belongs to the caller's trace when the request has a `traceparent`. Prompts and answers are not in it.
Spans that the collector does not take are dropped, and the log says so once: no answer waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import aiohttp
import msgspec

from fulgur import __version__
from fulgur.text.parts import Usage

if TYPE_CHECKING:
    from fulgur.server.config import ServerConfig
    from fulgur.server.run import Run

MOST = 4096  # spans that wait to be sent
GATHER_S = 0.5  # spans of this long are sent together
SEND_S = 5.0
CLOSE_S = 2.0
SERVER, INTERNAL, ERROR = 2, 1, 2  # as OTLP numbers kinds and statuses
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

Phase = tuple[str, float, float]  # its name, and from when to when on the performance counter

parent: ContextVar[str] = ContextVar("traceparent", default="")  # of the request that is served
log = logging.getLogger("fulgur.server")


class Tracer:
    """Gathers spans and sends them."""

    def __init__(self, endpoint: str) -> None:
        self._url = endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"
        given = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")  # a token, usually
        self._headers = {"Content-Type": "application/json", **_headers(given)}
        self._resource = _attributes(
            {"service.name": os.environ.get("OTEL_SERVICE_NAME") or "fulgur", "service.version": __version__}
        )
        self._offset = time.time_ns() - time.perf_counter_ns()
        self._spans: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._sending: asyncio.Task[None] | None = None
        self._failed = False

    @classmethod
    def of(cls, config: ServerConfig) -> Tracer | None:
        return cls(config.server.otlp) if config.server.otlp else None

    def answer(
        self, operation: str, traceparent: str, attributes: Mapping[str, Any], phases: Sequence[Phase], error: str = ""
    ) -> None:
        """One answer from its first phase to the end of its last."""
        found = _PARENT.fullmatch(traceparent)
        trace, above = found.groups() if found is not None else (secrets.token_hex(16), "")
        given = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "fulgur", **attributes}
        root = secrets.token_hex(8)
        name = f"{operation} {attributes['gen_ai.request.model']}"
        span = self._span(trace, root, above, name, SERVER, (phases[0][1], phases[-1][2]), given)
        if error:
            span["attributes"] += _attributes({"error.type": error})
            span["status"] = {"code": ERROR}
        self._spans.append(span)
        for phase, began, ended in phases:
            self._spans.append(self._span(trace, secrets.token_hex(8), root, phase, INTERNAL, (began, ended), {}))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_soon())

    async def close(self) -> None:
        """Send the remaining spans, if that is quick."""
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=CLOSE_S)
            self._sending.cancel()

    def _span(
        self,
        trace: str,
        name_id: str,
        above: str,
        name: str,
        kind: int,
        when: tuple[float, float],
        attributes: Mapping[str, Any],
    ) -> dict[str, Any]:
        began, ended = (str(self._offset + int(each * 1e9)) for each in when)
        ids = {"traceId": trace, "spanId": name_id} | ({"parentSpanId": above} if above else {})
        times = {"startTimeUnixNano": began, "endTimeUnixNano": ended}
        return {**ids, "name": name, "kind": kind, **times, "attributes": _attributes(attributes)}

    async def _send_soon(self) -> None:
        while self._spans:
            await asyncio.sleep(GATHER_S)
            await self._send()

    async def _send(self) -> None:
        spans, self._spans = list(self._spans), deque(maxlen=MOST)
        scope = {"scope": {"name": "fulgur", "version": __version__}, "spans": spans}
        body = {"resourceSpans": [{"resource": {"attributes": self._resource}, "scopeSpans": [scope]}]}
        try:
            timeout = aiohttp.ClientTimeout(total=SEND_S)
            async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as http:
                async with http.post(self._url, data=msgspec.json.encode(body)) as answer:
                    answer.raise_for_status()
            self._failed = False
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            if not self._failed:
                log.warning("spans cannot be sent to %s and are dropped: %s", self._url, error or type(error).__name__)
            self._failed = True


def of_run(run: Run, entered: float | None, generated: float) -> None:
    """Trace a response that was just committed: `entered` is when it got its slot, `generated` its last token."""
    tracer = run.server.tracer
    if tracer is None:
        return
    response, sampling = run.response, run.prepared.turn.sampling
    first = run.first_output or generated
    phases = [("queue", run.started, entered or generated)]
    if entered is not None:
        phases += [("prefill", entered, max(entered, first)), ("decode", max(entered, first), generated)]
    phases.append(("commit", generated, time.perf_counter()))
    reason = str((response.incomplete_details or {}).get("reason") or response.status)
    attributes = {
        **usage_attributes(response.model, run.usage, run.place.tier),
        "gen_ai.response.id": response.id,
        "gen_ai.response.finish_reasons": ["stop" if reason == "completed" else reason],
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.seed": sampling.seed,
    }
    error = str((response.error or {}).get("code") or "") if response.status == "failed" else ""
    tracer.answer("chat", run.traceparent, attributes, phases, error)


def usage_attributes(model: str, usage: Usage, tier: str) -> dict[str, Any]:
    return {
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "fulgur.service_tier": tier,
    }


def _attributes(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in given.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    return {"stringValue": str(value)}


def _headers(text: str) -> dict[str, str]:
    """As OpenTelemetry writes them: name=value,name=value, percent-encoded."""
    pairs: Iterable[tuple[str, str, str]] = (part.partition("=") for part in text.split(","))
    return {unquote(name.strip()): unquote(value.strip()) for name, equals, value in pairs if equals}
