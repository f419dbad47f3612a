"""A measurement in a child process: answers come back, and a crash there is an error here."""

from pathlib import Path

import pytest

from fulgur.bench.worker import Worker, WorkerDied


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # nothing is imported from the current folder
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


def test_answers_are_values() -> None:
    worker = Worker("dying")
    assert worker.call("add", a=2, b=3) == 5
    assert worker.call("add", a=4, b=4) == 8
    worker.close()
    worker.close()


def test_a_crash_is_named_by_its_signal() -> None:
    worker = Worker("dying")
    with pytest.raises(WorkerDied, match="signal 11"):
        worker.call("crash")
    with pytest.raises(WorkerDied):
        worker.call("add", a=1, b=1)
    worker.close()


def test_a_failure_carries_its_message() -> None:
    worker = Worker("dying")
    with pytest.raises(WorkerDied, match="ValueError: no such setting"):
        worker.call("fail")
    worker.close()


def test_a_death_while_loading() -> None:
    with pytest.raises(WorkerDied, match="signal 4"):
        Worker("dying", ready=False)
