"""Rows of tokens, resident on the training device: a batch is one gather, and the host never waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fulgur.errors import FulgurError
from lab.train.rows import WEIGHT_UNIT, load_rows

START = {"epoch": 0, "cursor": 0, "source": -1, "seen": []}
BY_PASS = ("code", "fim")


@dataclass
class Stream:
    """The training rows of one kind in a seeded random order, pass after pass, forever.

    "code" and "fim" have separate files for each pass, made while training runs: take a finished pass not seen yet, or
    the one seen longest ago. "edits" takes everything there is.
    """

    folder: Path
    kind: str
    device: torch.device
    seed: int = 0
    epoch: int = 0
    cursor: int = 0
    source: int = -1  # which pass's files the current epoch uses
    seen: list[int] = field(default_factory=list)  # the passes taken so far, the latest last
    _tokens: Tensor | None = field(default=None, repr=False)
    _weights: Tensor | None = field(default=None, repr=False)
    _order: Tensor | None = field(default=None, repr=False)

    @property
    def available(self) -> bool:
        """Whether rows can be read: a pass once it is complete; for edits, any finished file."""
        ready = f"{self.kind}-*.done" if self.kind in BY_PASS else f"train-{self.kind}-*.tokens.npy"
        return any(self.folder.glob(ready))

    def _finished(self) -> list[int]:
        return sorted(int(path.stem.rsplit("-", 1)[1]) for path in self.folder.glob(f"{self.kind}-*.done"))

    def _open(self, source: int | None = None) -> None:
        if self.kind in BY_PASS:
            finished = self._finished()
            if not finished:
                hint = f"Run `python -m lab.train data {self.kind}` first."
                raise FulgurError(f"{self.folder}: no finished pass of {self.kind} rows", hint=hint)
            chosen = source
            if chosen is None:
                chosen = next((n for n in finished if n not in self.seen), self.seen[0] if self.seen else finished[0])
                self.seen = [*(n for n in self.seen if n != chosen), chosen]
            prefix = f"train-{self.kind}-{chosen}-"
        else:
            chosen, prefix = 0, f"train-{self.kind}-"
        if chosen != self.source or self._tokens is None or self.kind not in BY_PASS:
            rows = load_rows(self.folder, prefix)
            if rows is None:
                raise FulgurError(f"{self.folder}: no rows named {prefix}*")
            self._tokens = torch.from_numpy(rows[0].view(np.int16)).to(self.device)
            self._weights = torch.from_numpy(rows[1]).to(self.device)
            self.source = chosen
        generator = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
        self._order = torch.randperm(len(self._tokens), generator=generator).to(self.device)

    def take(self, rows: int) -> tuple[Tensor, Tensor]:
        """Take the next rows: tokens (int16) and weights (uint8), [rows, context + 1]."""
        parts = []
        while rows > 0:
            if self._order is None:
                self._open()
            assert self._order is not None and self._tokens is not None and self._weights is not None
            index = self._order[self.cursor : self.cursor + rows]
            parts.append((self._tokens[index], self._weights[index]))
            self.cursor += len(index)
            rows -= len(index)
            if self.cursor >= len(self._order):
                self.epoch, self.cursor, self._order = self.epoch + 1, 0, None
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "cursor": self.cursor, "source": self.source, "seen": list(self.seen)}

    def restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.cursor, self.seen = state["epoch"], state["cursor"], list(state["seen"])
        self._order = None
        if self.cursor:
            self._open(state["source"] if self.kind in BY_PASS else None)


class Mixture:
    """Batches with fixed fractions of several streams; `emphasis` multiplies the loss weights of a kind of rows.

    A stream whose rows are still being made joins once the first are there.
    """

    def __init__(self, shares: list[tuple[Stream, float]], emphasis: dict[str, float] | None = None) -> None:
        self.shares = [(stream, share) for stream, share in shares if share > 0]
        self.emphasis = emphasis or {}
        self.parts: list[tuple[Stream, float]] = []
        self._join()
        if not self.parts:
            raise FulgurError("there are no training rows", hint="Run `python -m lab.train data` first.")

    def _join(self) -> None:
        if len(self.parts) < len(self.shares):
            usable = [(stream, share) for stream, share in self.shares if stream.available]
            total = sum(share for _, share in usable)
            self.parts = [(stream, share / total) for stream, share in usable]

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return tokens int64 and weights float32, [rows, context + 1], interleaved so that micro-batches are alike."""
        self._join()
        counts = [round(share * rows) for _, share in self.parts]
        counts[0] = rows - sum(counts[1:])
        tokens, weights, places = [], [], []
        for (stream, _), count in zip(self.parts, counts, strict=True):
            if count:
                taken, weight = stream.take(count)
                tokens.append(taken.long())
                weights.append(weight.float() * (self.emphasis.get(stream.kind, 1.0) / WEIGHT_UNIT))
                places += [(i + 0.5) / count for i in range(count)]
        order = torch.tensor(sorted(range(rows), key=places.__getitem__), device=tokens[0].device)
        return torch.cat(tokens)[order], torch.cat(weights)[order]

    def state(self) -> dict[str, dict[str, Any]]:
        return {stream.kind: stream.state() for stream, _ in self.shares}

    def restore(self, states: dict[str, dict[str, Any]]) -> None:
        for stream, _ in self.shares:
            stream.restore(states.get(stream.kind, START))


def heldout_rows(folder: Path, kind: str, rows: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """The first rows of the held-out packages, always the same ones; outside code, only hidden text and answers
    count."""
    found = load_rows(folder, f"heldout-{kind}-0-")
    if found is None or not len(found[0]):
        return None
    tokens = torch.from_numpy(found[0][:rows].astype(np.int64)).to(device)
    weights = torch.from_numpy(found[1][:rows].astype(np.float32) / WEIGHT_UNIT).to(device)
    return tokens, weights if kind == "code" else weights * (weights >= 1.0)
