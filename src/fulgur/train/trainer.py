"""The training loop every stage shares: wall-clock budget, accumulation, log, held-out loss, checkpoints, resume."""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fulgur.errors import FulgurError
from fulgur.train import checkpoint
from fulgur.train.model import Model
from fulgur.train.optim import Optimiser
from fulgur.train.streams import Mixture, heldout_rows

# (tokens, targets, weights) -> the weighted sum of the loss
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
# (step, progress from 0 to 1) -> multiple of the learning rate
Schedule = Callable[[int, float], float]


def add_arguments(parser: argparse.ArgumentParser, *, rows: int = 128, micro: int = 32) -> None:
    parser.add_argument("--run", type=Path, required=True, help="the run's folder; rows are in RUN/rows")
    parser.add_argument(
        "--minutes", type=float, default=None, help="wall-clock budget of this stage, compiling included"
    )
    parser.add_argument("--steps", type=int, default=None, help="number of steps, instead of a time budget")
    parser.add_argument("--rows", type=int, default=rows, help="rows a step")
    parser.add_argument("--micro", type=int, default=micro, help="rows at a time on the device")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--checkpoint-seconds", type=float, default=120.0)
    parser.add_argument("--evaluate-seconds", type=float, default=60.0)
    parser.add_argument(
        "--stop-after", type=int, default=None, help="end early after this step, as if cut off (for tests of resuming)"
    )


@dataclass
class Stage:
    name: str
    shape: str
    model: Model
    loss: Loss
    optimiser: Optimiser
    data: Mixture
    schedule: Schedule
    args: argparse.Namespace

    @property
    def folder(self) -> Path:
        return Path(self.args.run) / self.name

    def train(self) -> None:
        Run(self).go()


class Run:
    def __init__(self, stage: Stage) -> None:
        args = stage.args
        if (args.minutes is None) == (args.steps is None):
            raise FulgurError("give either --minutes or --steps")
        if args.rows % args.micro:
            raise FulgurError(f"--rows {args.rows} is not a multiple of --micro {args.micro}")
        self.stage, self.args = stage, args
        self.device = torch.device(args.device)
        self.began = time.monotonic()
        self.step, self.tokens, self.spent = 0, 0, 0.0  # spent: seconds of training before this process
        self.stopping = False
        stage.folder.mkdir(parents=True, exist_ok=True)
        self.log = (stage.folder / "losses.jsonl").open("a")

    def restore(self) -> bool:
        """Go on from a checkpoint if there is one; True if the stage is already complete."""
        state = checkpoint.load(self.stage.folder, self.device)
        if state is None:
            return False
        self.stage.model.load_state_dict(state["model"])
        self.stage.optimiser.restore(state["optimiser"])
        self.stage.data.restore(state["data"])
        self.step, self.tokens, self.spent = state["step"], state["tokens"], state["spent"]
        self.say({"resumed_at": self.step})
        return bool(state["done"])

    def save(self, done: bool = False) -> None:
        state = {
            "shape": self.stage.shape,
            "model": self.stage.model.state_dict(),
            "optimiser": self.stage.optimiser.state(),
            "data": self.stage.data.state(),
            "step": self.step,
            "tokens": self.tokens,
            "spent": self.spent + time.monotonic() - self.began,
            "done": done,
        }
        checkpoint.save(self.stage.folder, state)

    def say(self, row: dict[str, Any]) -> None:
        """One line of the log; the same line is the status to poll."""
        row = {"stage": self.stage.name, "step": self.step, **row}
        self.log.write(json.dumps(row) + "\n")
        self.log.flush()
        line = " ".join(f"{key}={value}" for key, value in row.items())
        (Path(self.args.run) / "status.txt").write_text(line + "\n")
        print(line, flush=True)

    def progress(self) -> float:
        if self.args.steps is not None:
            return self.step / self.args.steps
        start = getattr(self, "first_step_ended", self.began)
        earlier = self.spent
        total = 60.0 * self.args.minutes
        # Compiling counts against the budget but not as progress: the schedule is spread over what is left.
        return min(1.0, (earlier + time.monotonic() - start) / max(total - (start - self.began), 1.0))

    def take_step(self, scale: float) -> Tensor:
        args = self.args
        tokens, weights = self.stage.data.batch(args.rows)
        weights = weights[:, 1:]
        total = weights.sum().clamp_min(1.0)
        loss_sum = torch.zeros((), device=self.device)
        for start in range(0, args.rows, args.micro):
            part = slice(start, start + args.micro)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                loss = self.stage.loss(
                    tokens[part, :-1].contiguous(), tokens[part, 1:].contiguous(), weights[part].contiguous()
                )
            (loss / total).backward()
            loss_sum += loss.detach()
        self.stage.optimiser.step(scale)
        self.stage.model.zero_grad(set_to_none=True)
        self.tokens += tokens[:, 1:].numel()
        return loss_sum / total

    @torch.no_grad()
    def heldout(self) -> dict[str, float]:
        """Mean loss on fixed rows of held-out packages, uncompiled so that no second graph is built."""
        result = {}
        for kind in ("code", "fim", "edits"):
            rows = heldout_rows(Path(self.args.run) / "rows", kind, 64, self.device)
            if rows is None:
                continue
            tokens, weights = rows
            total = 0.0
            for start in range(0, len(tokens), 8):
                part = slice(start, start + 8)
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                    total += float(self.stage.model(tokens[part, :-1], tokens[part, 1:], weights[part, 1:]))
            result[f"heldout_{kind}"] = round(total / float(weights[:, 1:].sum().clamp_min(1.0)), 4)
        return result

    def go(self) -> None:
        if self.restore():
            self.say({"already": "done"})
            return
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        saved = evaluated = logged = time.monotonic()
        logged_tokens = self.tokens
        while self.progress() < 1.0 and not self.stopping:
            scale = self.stage.schedule(self.step, self.progress())
            loss = self.take_step(scale)
            self.step += 1
            if not hasattr(self, "first_step_ended"):
                value = float(loss)  # waits for the device: the compile is over
                self.first_step_ended = logged = time.monotonic()
                logged_tokens = self.tokens
                self.say({"loss": round(value, 4), "first_step_seconds": round(logged - self.began, 1)})
            now = time.monotonic()
            if self.step % 10 == 0 or self.args.steps is not None:
                value = float(loss)
                now = time.monotonic()
                if value != value:
                    raise FulgurError(f"{self.stage.name}: the loss is not a number at step {self.step}")
                row: dict[str, Any] = {
                    "loss": round(value, 4),
                    "rate": round(scale, 4),
                    "progress": round(self.progress(), 4),
                }
                row |= {
                    "tokens": self.tokens,
                    "tokens_per_second": round((self.tokens - logged_tokens) / max(now - logged, 1e-9)),
                }
                logged, logged_tokens = now, self.tokens
                if now - evaluated > self.args.evaluate_seconds:
                    row |= self.heldout()
                    evaluated = logged = time.monotonic()
                self.say(row)
            if now - saved > self.args.checkpoint_seconds:
                self.save()
                saved = logged = time.monotonic()
            if self.step == self.args.stop_after:
                self.save()
                return
        self.say(
            {"tokens": self.tokens, "seconds": round(self.spent + time.monotonic() - self.began, 1), **self.heldout()}
        )
        self.save(done=not self.stopping)


def compiled(function: Any, args: argparse.Namespace) -> Any:
    return torch.compile(function, dynamic=False) if args.compile else function


def prepare(args: argparse.Namespace) -> torch.device:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    return torch.device(args.device)
