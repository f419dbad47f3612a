"""The embedded models from the corpus archive to pieces that can be carried away, unattended on one GPU machine.

    python -m lab.train run --run RUN --archive corpus.jsonl.xz [--minutes 25] [--anneal 8] [--distil 4.5]
                            [--init src/fulgur/assets/60M --init-small src/fulgur/assets/30M --seed 1]

Detached:   setsid nohup python -m lab.train run … > /dev/null 2>&1 &
Watch:      RUN/status.txt (one line), RUN/log, RUN/STAGE.log
Results:    RUN/large-ready and RUN/small-ready appear when the pieces of a model are in RUN/out; RUN/finished at the
            end; RUN/failed names what failed twice. `python -m lab.train export pack` makes the packed folder.
Go on:      the same command with the same RUN. Stages continue from their checkpoints, rows that exist are kept.

The stages overlap. Pretraining compiles while the corpus and the first rows are made; annealing and distilling compile
while the stage before them trains, then wait for its model. Each stage has a deadline counted back from the end, so a
late start shortens only pretraining. The run works on its own copy of the code, so the checkout may change.
`--archive` may be a folder: archives part-00.jsonl.xz, part-01… are used as they arrive, each as one pass. With
`--distil 0` the small model is left as it is. With `--hybrid` a hybrid with a drafting head is trained instead.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import shutil
import signal
import sys
import tarfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from fulgur.errors import FulgurError
from lab.train.scheduler import Scheduler, until

CHECKOUT = Path(__file__).parents[2]
COPIED = "FULGUR_RUN_COPY"  # set in the environment of the process that works on the copy
EXPORT_SECONDS, HANDOVER_SECONDS = 35, 8  # after the last stage; between two stages
ARCHIVE_SECONDS = 240  # how long to wait for parts of the archive
SHORTEST_EDITS = 60  # the least seconds for making edit rows
EDIT_SECONDS = 20  # for the edits of each archive that arrives; three times that for the first
CODE_EVERY = 4  # one of this many archives is also made into rows of code; more are not read
EARLY_PASSES = 3  # passes over the code to make before anything else
# For a model that continues from an earlier one: lower learning rates, and fewer edits, which it knows better than
# completions.
LOWER_RATES = ["--matrix-rate", "2e-3", "--vector-rate", "1.7e-3"]
FEWER_EDITS = ["--edit-share", "0.26"]


@dataclass(frozen=True)
class Deadlines:
    """When each stage ends, in Unix seconds."""

    pretrain: float
    anneal: float
    distil: float

    @classmethod
    def of(cls, began: float, minutes: float, anneal: float, distil: float) -> Deadlines:
        small = began + 60 * minutes - EXPORT_SECONDS
        large = small - 60 * distil - HANDOVER_SECONDS
        return cls(large - 60 * anneal - HANDOVER_SECONDS, large, small)


def python(module: str, *options: object) -> list[str]:
    return [sys.executable, "-m", f"lab.train.{module}", *map(str, options)]


class Pipeline:
    """The stages of one run, and what each waits for."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.folder: Path = args.run
        self.scheduler = Scheduler(self.folder)
        self.ends = Deadlines.of(self.scheduler.began, args.minutes, args.anneal, args.distil)
        self.data_options = [*shlex.split(args.data_options), "--seed", args.seed]

    def go(self) -> bool:
        """Run all stages; True if every one ended well."""
        for name in ("finished", "failed", "large-ready", "small-ready"):
            (self.folder / name).unlink(missing_ok=True)
        pretrain = self.scheduler.start(self.pretrain)
        rows = self.scheduler.start(self.rows)
        # Start the later stages early too, so that they compile and faults show before they are needed.
        until((self.folder / "pretrain" / "stepping").exists, pretrain)
        anneal = self.scheduler.start(self.anneal)
        until((self.folder / "anneal" / "compiled").exists, anneal)
        distil = self.scheduler.start(self.distil) if self.args.distil else None
        pretrain.result()
        anneal.result()
        self.export("large", "anneal")
        if distil is not None:
            distil.result()
            self.export("small", "distil")
        if not self.scheduler.stopping:
            self.scheduler.attempt("plot", python("plot", "--run", self.folder, "--out", "losses.svg"))
            self.pack_logs()
        interrupted = self.scheduler.stopping
        self.scheduler.stop()  # rows still being made are not needed any more
        rows.result()
        if interrupted:
            self.scheduler.say("stopped; the same command resumes from here")
            return False
        failed = self.folder / "failed"
        names = failed.read_text().split() if failed.exists() else []
        self.scheduler.say(f"finished, failed: {' '.join(names)}" if names else "finished")
        (self.folder / "finished").touch()
        return not names

    def stage(self, name: str, end: float, *options: object) -> bool:
        """Run a stage: it compiles at once, then waits for its input, which is rows or the previous stage's model."""
        common = ["--run", self.folder, "--wait", 1200, "--until", f"{end:.0f}"]
        return self.scheduler.attempt(name, python(name, *common, *shlex.split(self.args.stage_options), *options))

    def pretrain(self) -> bool:
        options: list[object] = ["--shape", self.args.shape]
        if self.args.init:  # the model has seen edits, so they stay in the mix from the start
            options += ["--init", self.folder / "init", *LOWER_RATES, "--warmup", 60]
            options += ["--fim-share", 0.55, *FEWER_EDITS]
        return self.stage("pretrain", self.ends.pretrain, *options)

    def anneal(self) -> bool:
        going_on = [*LOWER_RATES, *FEWER_EDITS] if self.args.init else []
        return self.stage("anneal", self.ends.anneal, "--shape", self.args.shape, *going_on)

    def distil(self) -> bool:
        options: list[object] = [
            "--teacher",
            "anneal",
            "--teacher-shape",
            self.args.shape,
            "--shape",
            self.args.student,
        ]
        if self.args.init_small:
            options += ["--init", self.folder / "init-small", *LOWER_RATES]
        return self.stage("distil", self.ends.distil, *options)

    def rows(self) -> bool:
        """The CPU's part: the corpus, some rows of code, then edits and completions beside more code."""
        if self.args.archive.is_dir():
            return self.rows_as_they_arrive()
        archive = join_archive(self.args.archive, self.folder, self.scheduler)
        if archive is None:
            return False
        corpus = self.folder / "corpus"
        if not (corpus / "report.json").exists():
            command = python("corpus", "--archive", archive, "--out", corpus, *shlex.split(self.args.corpus_options))
            job = self.scheduler.start(lambda: self.scheduler.attempt("corpus", command))
            # Rows can be made once the report is there; the list of files is still being written then.
            until((corpus / "report.json").exists, job)
        self.make("code", "rows-first", "--parts", self.args.parts, "--passes", EARLY_PASSES)
        seconds = max(self.ends.distil - time.time() - 30, SHORTEST_EDITS)
        edits = self.scheduler.start(lambda: self.make_edits(seconds))
        self.make("fim", "rows-fim", nice=5)
        more = ["--parts", self.args.parts, "--first-pass", EARLY_PASSES, "--passes", self.args.passes - EARLY_PASSES]
        self.make("code", "rows-code", *more, nice=5)
        self.make("fim", "rows-fim-more", "--first-pass", 1, nice=10)
        return edits.result()

    def rows_as_they_arrive(self) -> bool:
        """Each archive is one part of the corpus and one pass of completions; of code and edits there are enough."""
        edits = []
        for number in range(self.args.parts):
            archive = self.args.archive / f"part-{number:02d}.jsonl.xz"
            while not (archive.exists() and complete_xz(archive)):
                if self.scheduler.stopping or time.time() > self.ends.distil:
                    return True
                time.sleep(0.3)
            which = ["--part", number, "--parts", self.args.parts]
            given = ["--archive", archive, "--out", self.folder / "corpus", "--no-installed", *which]
            if not (self.folder / "corpus" / f"report-{number:02d}.json").exists():
                command = python("corpus", *given, *shlex.split(self.args.corpus_options))
                self.scheduler.attempt(f"corpus-{number}", command)
            one = ["--parts", self.args.parts, "--first-pass", number]
            if number % CODE_EVERY == 0:
                self.make("code", f"rows-code-{number}", *one, nice=2 if number else 0)
            self.make("fim", f"rows-fim-{number}", *one, nice=2 if number else 0)
            edits.append(self.scheduler.start(functools.partial(self.make_part_of_edits, number, one)))
        return all(job.result() for job in edits)

    def make_part_of_edits(self, number: int, one: list[object]) -> bool:
        seconds = EDIT_SECONDS * (1 if number else 3)
        options = [*one, "--minutes", seconds / 60]
        return self.make("edits", f"rows-edits-{number}", *options, nice=3, seconds=seconds + 60)

    def make(self, kind: str, name: str, *options: object, nice: int = 0, seconds: float | None = None) -> bool:
        command = python("data", kind, "--corpus", "corpus", "--out", "rows", *self.data_options, *options)
        return self.scheduler.attempt(name, command, nice=nice, seconds=seconds)

    def make_edits(self, seconds: float) -> bool:
        # A file that hangs a generator must not hang the run: past the limit its rows are given up.
        return self.make("edits", "rows-edits", "--minutes", seconds / 60, nice=3, seconds=seconds + 60)

    def export(self, size: str, stage: str) -> None:
        """Make the pieces first; measure the cost of rounding after that."""
        if self.scheduler.stopping or not (self.folder / stage / "checkpoint.pt").exists():
            return
        pieces = python("export", "pieces", "--run", self.folder, "--stage", stage)
        if self.scheduler.attempt(f"export-{size}", [*pieces, "--out", "out"]):
            (self.folder / f"{size}-ready").touch()
        self.scheduler.attempt(f"quantise-{size}", python("quantise", "--run", self.folder, "--stage", stage))
        if size == "large" and self.args.init:
            compared = python("versus", "--run", self.folder, "--stage", stage, "--out", "out/versus.json")
            self.scheduler.attempt("versus", compared)
        if size == "large":
            self.scheduler.attempt("export-bf16-large", [*pieces, "--out", "bf16", "--precision", "bf16"], nice=5)

    def pack_logs(self) -> None:
        names = ["log", "*.log", "losses.svg", "corpus/report*.json", "corpus/manifest*.jsonl.xz"]
        names += ["*/losses.jsonl", "*/quantise.json"]
        with tarfile.open(self.folder / "out" / "logs.tar.xz", "w:xz") as archive:
            for file in sorted({file for name in names for file in self.folder.glob(name)}):
                archive.add(file, file.relative_to(self.folder))


def join_archive(given: Path, folder: Path, scheduler: Scheduler) -> Path | None:
    """Put the archive, or its joined parts, into the run's folder; wait for missing parts."""
    plain, packed, joined = folder / "archive.jsonl", folder / "archive.jsonl.xz", folder / "joined"
    end = time.time() + ARCHIVE_SECONDS
    while time.time() < end and not scheduler.stopping:
        for ready in (plain, packed):
            if ready.exists():
                scheduler.say("archive complete")
                return ready
        parts = [given] if given.exists() else sorted(given.parent.glob(f"{given.name}*"))
        with joined.open("wb") as out:
            for part in parts:
                out.write(part.read_bytes())
        if joined.read_bytes()[:1] == b"{":
            joined.replace(plain)
        elif complete_xz(joined):
            joined.replace(packed)
        else:
            time.sleep(0.5)
    scheduler.say(f"the archive {given} is not complete")
    return None


def complete_xz(path: Path) -> bool:
    """Whether an .xz file has its footer: `YZ` after a checksum of the size and the flags."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 12))
        footer = file.read()
    return size >= 32 and footer[10:] == b"YZ" and zlib.crc32(footer[4:10]) == int.from_bytes(footer[:4], "little")


def copy_once(source: Path, target: Path) -> None:
    """Copy a folder of the checkout into the run's folder; it appears complete or not at all."""
    if target.exists():
        return
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, ignore=shutil.ignore_patterns("__pycache__"))
    partial.rename(target)


def begin_on_copy(args: argparse.Namespace, argv: list[str]) -> None:
    """Copy the code and the models to start from, and continue in a process that uses the copy."""
    (args.run / "out").mkdir(parents=True, exist_ok=True)
    for name in ("src", "lab"):
        copy_once(CHECKOUT / name, args.run / name)
    for model, name in ((args.init, "init"), (args.init_small, "init-small")):
        if model:
            if not (args.hybrid or (model / "config.json").exists()):
                raise FulgurError(f"{model}: no model folder", hint="Give a packed folder like src/fulgur/assets/60M.")
            copy_once(model, args.run / name)
    environment = {
        COPIED: "1",
        "PYTHONPATH": f"{args.run / 'src'}{os.pathsep}{args.run}",
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(args.run / "inductor"),
        "TRITON_CACHE_DIR": str(args.run / "triton"),
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TOKENIZERS_PARALLELISM": "false",
    }
    where = ["--run", str(args.run), "--archive", str(args.archive)]  # absolute; the last option counts
    os.chdir(args.run)
    os.execve(sys.executable, python("run", *argv, *where), {**os.environ, **environment})


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.train run", description="Train the embedded models.")
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument(
        "--archive", type=Path, required=True, help="what `gather` wrote, or the common prefix of its parts' names"
    )
    parser.add_argument("--minutes", type=float, default=25, help="wall-clock budget of the whole run")
    parser.add_argument("--anneal", type=float, default=8, metavar="MINUTES")
    parser.add_argument("--distil", type=float, default=4.5, metavar="MINUTES", help="0: no small model")
    parser.add_argument("--init", type=Path, help="continue from this packed model, at lower learning rates")
    parser.add_argument("--init-small", type=Path, help="the same for the small model")
    parser.add_argument("--seed", type=int, default=0, help="seed for how the files are cut")
    parser.add_argument("--shape", default="60M")
    parser.add_argument("--student", default="30M", help="the shape of the small model")
    parser.add_argument("--passes", type=int, default=20, help="passes over a part of the code")
    parser.add_argument("--parts", type=int, default=8, help="parts of the corpus; a pass takes one")
    parser.add_argument("--hybrid", action="store_true", help="train the hybrid instead (--shape hybrid)")
    for name in ("stage", "data", "corpus"):
        parser.add_argument(
            f"--{name}-options", default="", help=f"further options of `lab.train {name}`, as one string"
        )
    args = parser.parse_args(argv)
    args.run, args.archive = args.run.absolute(), args.archive.absolute()
    return args


def chosen(args: argparse.Namespace) -> Pipeline:
    if args.hybrid:
        from lab.train.hybrid_run import HybridPipeline

        return HybridPipeline(args)
    return Pipeline(args)


def main(argv: list[str] | None = None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    args = parse(given)
    if COPIED not in os.environ:
        begin_on_copy(args, given)
    pipeline = chosen(args)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: pipeline.scheduler.stop())
    return 0 if pipeline.go() else 1


if __name__ == "__main__":
    raise SystemExit(main())
