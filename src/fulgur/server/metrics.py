"""The metrics that Prometheus reads at `/metrics`: counters and histograms, plain numbers that are written on
request."""

from __future__ import annotations

import bisect
import time
from collections import defaultdict

from fulgur.text.parts import Usage

Labels = tuple[tuple[str, str], ...]

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
RATES = (10.0, 30.0, 100.0, 200.0, 500.0, 1000.0, 1500.0, 2000.0, 3000.0, 5000.0)

HELP = {
    "fulgur_responses_total": ("counter", "Responses ended, by model and status."),
    "fulgur_input_tokens_total": ("counter", "Input tokens, by model."),
    "fulgur_cached_tokens_total": ("counter", "Input tokens that were in the cache, by model."),
    "fulgur_output_tokens_total": ("counter", "Output tokens, by model."),
    "fulgur_draft_tokens_total": ("counter", "Tokens proposed by drafters, by model."),
    "fulgur_accepted_tokens_total": ("counter", "Drafted tokens that were accepted, by model."),
    "fulgur_engine_seconds_total": (
        "counter",
        "Seconds from submitting to the local engine until its last token, by model.",
    ),
    "fulgur_cost_total": ("counter", "Cost from the price table, by model."),
    "fulgur_steers_total": ("counter", "Steers, by outcome."),
    "fulgur_http_requests_total": ("counter", "HTTP requests, by path and status."),
    "fulgur_websocket_frames_total": ("counter", "Frames received, by type."),
    "fulgur_store_failures_total": ("counter", "Responses that could not be stored and were sent with store: false."),
    "fulgur_websockets": ("gauge", "Open sockets."),
    "fulgur_responses_running": ("gauge", "Running responses."),
    "fulgur_first_token_seconds": ("histogram", "From the request to the first output, by model."),
    "fulgur_queue_seconds": ("histogram", "Waits for a slot of a pool, by tier."),
    "fulgur_commit_seconds": ("histogram", "From the end of a stored response until it was committed."),
    "fulgur_tokens_per_second": ("histogram", "Output tokens a second after the first, by model."),
}


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """The server's numbers."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, dict[Labels, Histogram]] = defaultdict(dict)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        self._values[name][tuple(sorted(labels.items()))] += amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        histogram = self._histograms[name].get(key)
        if histogram is None:
            histogram = Histogram(RATES if name == "fulgur_tokens_per_second" else SECONDS)
            self._histograms[name][key] = histogram
        histogram.add(value)

    def record(self, model: str, status: str, usage: Usage, cost: float | None) -> None:
        """One answer that has ended."""
        self.add("fulgur_responses_total", model=model, status=status)
        self.add("fulgur_input_tokens_total", usage.input_tokens, model=model)
        self.add("fulgur_cached_tokens_total", usage.cached_tokens, model=model)
        self.add("fulgur_output_tokens_total", usage.output_tokens, model=model)
        self.add("fulgur_draft_tokens_total", usage.draft_tokens, model=model)
        self.add("fulgur_accepted_tokens_total", usage.accepted_tokens, model=model)
        self.add("fulgur_engine_seconds_total", usage.seconds, model=model)
        if cost is not None:
            self.add("fulgur_cost_total", cost, model=model)

    def get(self, name: str, **labels: str) -> float:
        return self._values[name][tuple(sorted(labels.items()))]

    def text(self) -> str:
        """The Prometheus text format."""
        lines: list[str] = []
        for name, (kind, help_text) in HELP.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(key)} {value:.12g}" for key, value in sorted(self._values[name].items())]
            for key, histogram in sorted(self._histograms[name].items()):
                count = 0
                for bound, n in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
                    count += n
                    edge = "+Inf" if bound == float("inf") else f"{bound:g}"
                    lines.append(f"{name}_bucket{_labels((*key, ('le', edge)))} {count}")
                lines += [f"{name}_sum{_labels(key)} {histogram.total:g}", f"{name}_count{_labels(key)} {count}"]
        name = "process_cpu_seconds_total"
        lines += [f"# HELP {name} Processor time of the server's process.", f"# TYPE {name} counter"]
        lines.append(f"{name} {time.process_time():.6f}")
        return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = (value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for _, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for (name, _), value in zip(labels, quoted, strict=True)) + "}"
