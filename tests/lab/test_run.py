"""`python -m lab.train run`: retries, deadlines, an archive in parts, and a whole run at toy size."""

from __future__ import annotations

import lzma
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from toy_run import OPTIONS, standard_library

from lab.train import run
from lab.train.documents import write_documents
from lab.train.scheduler import Scheduler

CHECKOUT = Path(run.__file__).parents[2]


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_a_command_is_tried_twice_and_its_failure_recorded(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    assert scheduler.attempt("second", shell("echo x >> tries; [ $(wc -l < tries) = 2 ]"))
    assert not scheduler.attempt("never", shell("echo because; exit 3"))
    assert not scheduler.attempt("slow", ["sleep", "60"], seconds=0.1)
    assert (tmp_path / "failed").read_text() == "never\nslow\n"
    log = (tmp_path / "log").read_text()
    assert log.count("second (try") == 2 and log.count("never FAILED: because") == 2
    assert (tmp_path / "status.txt").read_text() == log.splitlines(keepends=True)[-1]


def test_stopping_ends_what_a_command_started(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    job = scheduler.start(lambda: scheduler.attempt("long", shell("sleep 60 & echo $! > pid; wait")))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.02)
    scheduler.stop()
    assert job.result() is False
    assert not (tmp_path / "failed").exists()  # cut off, not failed
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(int((tmp_path / "pid").read_text()), 0)
            time.sleep(0.02)


def test_deadlines_are_counted_back_from_the_end() -> None:
    ends = run.Deadlines.of(1000.0, minutes=25, anneal=8, distil=4.5)
    assert ends.distil == 1000 + 25 * 60 - run.EXPORT_SECONDS
    assert ends.distil - ends.anneal == 4.5 * 60 + run.HANDOVER_SECONDS
    assert ends.anneal - ends.pretrain == 8 * 60 + run.HANDOVER_SECONDS


def test_the_archive_is_joined_when_its_last_part_arrives(tmp_path: Path) -> None:
    data = lzma.compress(os.urandom(2000))
    (tmp_path / "corpus.part.00").write_bytes(data[:1000])
    late = threading.Timer(1.0, lambda: (tmp_path / "corpus.part.01").write_bytes(data[1000:]))
    late.start()
    folder = tmp_path / "run"
    folder.mkdir()
    found = run.join_archive(tmp_path / "corpus.part.", folder, Scheduler(folder))
    late.join()
    assert found is not None and found.name == "archive.jsonl.xz" and found.read_bytes() == data
    assert not run.complete_xz(tmp_path / "corpus.part.00")


def start(archive: Path, tokenizer: Path, folder: Path, minutes: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lab.train", "run", "--run", folder, "--archive", archive]
    command += ["--minutes", f"{minutes}", "--anneal", "0.05", "--distil", "0.05", "--passes", "4", "--parts", "1"]
    command += ["--shape", "toy", "--student", "toy-small", "--stage-options", " ".join(OPTIONS)]
    command += ["--data-options", f"--context 256 --processes 1 --tokenizer {tokenizer}"]
    command += ["--corpus-options", "--no-installed --shards 2 --processes 1"]
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT / 'src'}{os.pathsep}{CHECKOUT}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(list(map(str, command)), env=environment)


def test_a_whole_run_at_toy_size_cut_off_and_taken_up_again(toy: Path, tmp_path: Path) -> None:
    folder, archive = tmp_path / "run", tmp_path / "archive.jsonl.xz"
    write_documents(archive, [standard_library(name) for name in ("bisect", "copy", "glob", "shlex", "string")])
    first = start(archive, toy / "tokenizer.json", folder, 60)
    while not (folder / "pretrain" / "compiled").exists():
        assert first.poll() is None, (folder / "log").read_text()
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    assert first.wait(400) == 1
    assert "resumes from here" in (folder / "status.txt").read_text() and not (folder / "finished").exists()
    # The ends of all stages have passed: each takes no more than a step and hands on.
    assert start(archive, toy / "tokenizer.json", folder, 0.5).wait(400) == 0, (folder / "log").read_text()
    assert (folder / "finished").exists() and not (folder / "failed").exists()
    out = {path.name for path in (folder / "out").iterdir()}
    assert {"toy-quantised.json", "toy-small-quantised.json", "logs.tar.xz"} <= out
    assert (folder / "large-ready").exists() and (folder / "small-ready").exists()
    assert (folder / "src" / "fulgur").is_dir() and (folder / "lab" / "train").is_dir()
