"""The edit replay: the edits apply, the forced text comes out, and drafts do not change it."""

from pathlib import Path

import numpy as np
import pytest

from fulgur.bench.comparison import Comparison
from fulgur.bench.edits import EDITS, Edit
from fulgur.bench.replay import VOCABULARY, ForcedRuntime, Replay, write_tokenizer
from fulgur.engine.speculate import StepCost
from fulgur.kernels.reference import Runtime
from fulgur.model.random import RandomSource, tiny_config
from fulgur.model.weights import assemble


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    config = tiny_config(n_layers=1, vocab_size=VOCABULARY, max_context=2048)
    return Runtime(assemble(RandomSource(config, 0), bits=8), kv_blocks=32)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.instruction)
def test_edits_apply_and_give_valid_python(edit: Edit) -> None:
    compile(edit.original, "original", "exec")
    compile(edit.edited, "edited", "exec")
    assert edit.edited != edit.original


def test_an_edit_that_does_not_apply_is_an_error() -> None:
    with pytest.raises(ValueError, match="'missing' is not in the text"):
        _ = Edit("x", "text", (("missing", "new"),)).edited


def test_drafts_are_mostly_right_and_take_fewer_steps(
    runtime: Runtime, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {True: 0, False: 0}
    count = ForcedRuntime.step
    for speculate in (True, False):

        def step(self: ForcedRuntime, *args: np.ndarray, speculate: bool = speculate) -> np.ndarray:
            steps[speculate] += 1
            return count(self, *args)

        monkeypatch.setattr(ForcedRuntime, "step", step)
        result = Replay(runtime, tokenizer, StepCost()).run(EDITS[0], speculate=speculate)
        assert result.tokens > 200
        assert result.accepted <= result.drafted
        assert (result.drafted > 0) == speculate
    assert steps[True] < steps[False] / 2


def test_every_edit_is_held_against_single_steps() -> None:
    """A pause of the machine in one round changes no figure."""
    runs = [[{"tokens": 100, "seconds": 0.05, "raw": 0.001, "drafted": 90, "accepted": 60} for _ in EDITS]] * 3
    comparison = Comparison.__new__(Comparison)
    comparison.replays = [*runs[:2], [dict(run) for run in runs[2]]]
    assert comparison.edit_ratio == pytest.approx(2.0) and comparison.edit_rate == pytest.approx(2000)
    comparison.replays[2][1]["seconds"] += 5.0
    assert comparison.edit_ratio == pytest.approx(2.0) and comparison.edit_rate == pytest.approx(2000)
    assert comparison.edit_accepted == pytest.approx(2 / 3)
