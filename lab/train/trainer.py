"""The training loop that all stages share: wall-clock budget, accumulation, log, held-out loss, checkpoints, resume."""

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
from fulgur.model.config import ModelConfig
from lab.train import attention, checkpoint
from lab.train.model import Model
from lab.train.optim import Optimiser
from lab.train.streams import Mixture, heldout_rows

# (tokens, targets, weights) -> the weighted sum of the loss
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
# (step, progress from 0 to 1) -> multiple of the learning rate
Schedule = Callable[[int, float], float]
# Loads what the stage starts from into its model and optimiser, and opens its rows.
Begin = Callable[[], Mixture]


def add_arguments(parser: argparse.ArgumentParser, *, rows: int = 64, micro: int = 32) -> None:
    parser.add_argument("--run", type=Path, required=True, help="the run's folder; rows are in RUN/rows")
    parser.add_argument(
        "--minutes", type=float, default=None, help="wall-clock budget of this stage, compiling included"
    )
    parser.add_argument("--until", type=float, default=None, help="end at this time (Unix seconds) instead")
    parser.add_argument("--steps", type=int, default=None, help="number of steps, instead of a time budget")
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        help="compile first, then wait up to this many seconds for what the stage starts from",
    )
    parser.add_argument("--rows", type=int, default=rows, help="rows per step")
    parser.add_argument("--micro", type=int, default=micro, help="rows at a time on the device")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--checkpoint-seconds", type=float, default=120.0)
    parser.add_argument("--evaluate-seconds", type=float, default=90.0)
    parser.add_argument(
        "--stop-after",
        type=int,
        default=None,
        help="stop early after this step, as if interrupted (for tests of resuming)",
    )


@dataclass
class Stage:
    name: str
    shape: str
    model: Model
    loss: Loss
    optimiser: Optimiser
    needs: Path  # the file that shows that the stage can begin
    begin: Begin
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
        if sum(value is not None for value in (args.minutes, args.until, args.steps)) != 1:
            raise FulgurError("give one of --minutes, --until and --steps")
        if args.rows % args.micro:
            raise FulgurError(f"--rows {args.rows} is not a multiple of --micro {args.micro}")
        self.stage, self.args = stage, args
        self.device = torch.device(args.device)
        self.began = time.monotonic()
        self.step, self.tokens, self.spent = 0, 0, 0.0  # spent: seconds of training before this process
        self.data: Mixture
        self.deadline = self.began + (args.until or 0.0) - time.time()
        self.stopping = False
        stage.folder.mkdir(parents=True, exist_ok=True)
        self.log = (stage.folder / "losses.jsonl").open("a")

    def restore(self) -> bool:
        """Resume from a checkpoint if there is one; True if the stage is already complete."""
        state = checkpoint.load(self.stage.folder, self.device)
        if state is None:
            return False
        self.stage.model.load_state_dict(state["model"])
        self.stage.optimiser.restore(state["optimiser"])
        self.data.restore(state["data"])
        self.step, self.tokens, self.spent = state["step"], state["tokens"], state["spent"]
        self.say({"resumed_at": self.step})
        return bool(state["done"])

    def save(self, done: bool = False) -> None:
        state = {
            "shape": self.stage.shape,
            "model": self.stage.model.state_dict(),
            "optimiser": self.stage.optimiser.state(),
            "data": self.data.state(),
            "step": self.step,
            "tokens": self.tokens,
            "spent": self.spent + time.monotonic() - getattr(self, "first_step_ended", time.monotonic()),
            "done": done,
        }
        checkpoint.save(self.stage.folder, state)
        if done:
            (self.stage.folder / checkpoint.DONE).touch()

    def say(self, row: dict[str, Any]) -> None:
        """Write one line to the log and, for polling, to the status file."""
        row = {"stage": self.stage.name, "step": self.step, **row}
        self.log.write(json.dumps(row) + "\n")
        self.log.flush()
        line = " ".join(f"{key}={value}" for key, value in row.items())
        (Path(self.args.run) / "status.txt").write_text(line + "\n")
        print(line, flush=True)

    def progress(self) -> float:
        if self.args.steps is not None:
            return self.step / self.args.steps
        # Compiling and waiting count against the budget but not as progress: the schedule spreads over the remaining
        # time.
        start = getattr(self, "first_step_ended", time.monotonic())
        end = self.began + 60.0 * self.args.minutes if self.args.minutes is not None else self.deadline
        done = self.spent + time.monotonic() - start
        return min(1.0, done / max(self.spent + end - start, 1.0)) if end > time.monotonic() else 1.0

    def take_step(self, scale: float) -> Tensor:
        args = self.args
        tokens, weights = self.data.batch(args.rows)
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

    def heat(self) -> None:
        """Compile on random tokens, before there is anything to learn. If that fails, retry without the fast attention,
        then without the compiler: a slow run is better than none."""
        ways_out = [attention.use_plain] if attention.fast() else []
        ways_out += [self.without_compiler] if self.args.compile else []
        while True:
            try:
                self.step_on_random_tokens()
                break
            except Exception as problem:
                if not ways_out:
                    raise
                self.say({"failed": repr(problem)[:300].replace("\n", " "), "then": ways_out[0].__name__})
            ways_out.pop(0)()
            self.stage.model.zero_grad(set_to_none=True)
            torch._dynamo.reset()
        self.stage.model.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        (self.stage.folder / "compiled").touch()
        self.say({"compiled_seconds": round(time.monotonic() - self.began, 1), "attention": attention.name()})

    def without_compiler(self) -> None:
        """Without the compiler nothing is fused, so each row needs more memory: process half as many rows at a time."""
        torch.compiler.set_stance("force_eager")
        if self.args.micro % 2 == 0:
            self.args.micro //= 2

    def step_on_random_tokens(self) -> None:
        config, args = self.stage.model.config, self.args
        tokens = torch.randint(24, config.vocab_size, (args.micro, config.max_context + 1), device=self.device)
        weights = torch.ones((args.micro, config.max_context), device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = self.stage.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), weights)
        (loss / weights.numel()).backward()
        norms = [p.grad.norm() for p in self.stage.model.parameters() if p.grad is not None]
        if not torch.stack([loss.detach(), *norms]).isfinite().all():
            raise FulgurError("the compiled step returns NaN or infinite values")

    def wait(self) -> None:
        until = time.monotonic() + self.args.wait
        while not self.stage.needs.exists() and time.monotonic() < until and not self.stopping:
            time.sleep(0.2)

    @torch.no_grad()
    def heldout(self) -> dict[str, float]:
        """Mean loss on fixed rows of held-out packages, uncompiled so that no second graph is built."""
        with torch.compiler.set_stance("force_eager"):
            return self._heldout()

    def _heldout(self) -> dict[str, float]:
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
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        if (self.stage.folder / checkpoint.DONE).exists():
            self.say({"already": "done"})
            return
        if self.args.wait:
            self.heat()
            self.wait()
        self.data = self.stage.begin()
        if self.restore():
            self.say({"already": "done"})
            return
        saved = evaluated = logged = time.monotonic()
        logged_tokens = self.tokens
        while self.progress() < 1.0 and not self.stopping:
            scale = self.stage.schedule(self.step, self.progress())
            loss = self.take_step(scale)
            self.step += 1
            if not hasattr(self, "first_step_ended"):
                value = float(loss)  # waits for the device, so compiling is over
                self.first_step_ended = logged = time.monotonic()
                logged_tokens = self.tokens
                (self.stage.folder / "stepping").touch()
                self.say({"loss": round(value, 4), "first_step_seconds": round(logged - self.began, 1)})
            now = time.monotonic()
            if self.step % 10 == 0 or self.args.steps is not None:
                value = float(loss)
                now = time.monotonic()
                if value != value:
                    raise FulgurError(f"{self.stage.name}: the loss is NaN at step {self.step}")
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
        self.save(done=not self.stopping)  # before anything else, because the next stage waits for it
        self.say(
            {"tokens": self.tokens, "seconds": round(self.spent + time.monotonic() - self.began, 1), **self.heldout()}
        )


def compiled(function: Any, args: argparse.Namespace) -> Any:
    return torch.compile(function, dynamic=False) if args.compile else function


def prepare(args: argparse.Namespace, config: ModelConfig) -> torch.device:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    if device.type == "cuda":
        attention.choose(config, device)
    return device
