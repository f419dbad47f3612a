"""A second run goes on from the packed model of the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fulgur.errors import FulgurError
from fulgur.model.config import ModelConfig
from fulgur.text.code_prompt import trained_suffix_first
from fulgur.workspace.folders import ASSETS
from lab.train.grow import doubled
from lab.train.model import Model, fake_quantise
from lab.train.pretrain import packed_weights
from lab.train.shapes import shape


@pytest.mark.parametrize("name", ["30M", "60M"])
def test_what_is_trained_is_what_ships(name: str) -> None:
    assert ModelConfig.from_folder(ASSETS / name).to_json() == shape(name).to_json()


def test_the_shipped_model_can_be_trained_further() -> None:
    model = Model(shape("60M"))
    found = packed_weights(ASSETS / "60M", model)
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert found[name].shape == parameter.shape
    model.load_state_dict(found)  # strict: nothing is missing, nothing is left over
    # What was rounded once rounds to itself: matrices come back in the right order and scale.
    for name in ("layers.0.q_proj", "layers.3.up_proj", "layers.8.down_proj", "embed"):
        rounded = fake_quantise(found[name], 4, torch.ones(()))
        assert torch.allclose(rounded, found[name], atol=1e-5)


def test_a_deeper_model_begins_with_what_the_shipped_one_computes() -> None:
    tokens = torch.randint(24, 8192, (1, 40), generator=torch.Generator().manual_seed(1))
    shallow, deep = Model(shape("60M")), Model(shape("90M"))
    for model in (shallow, deep):
        model.load_state_dict(packed_weights(ASSETS / "60M", model))
    with torch.no_grad():
        assert torch.equal(shallow.logits(tokens), deep.logits(tokens))
    silent = [i for i, layer in enumerate(deep.layers) if not layer.o_proj.any() and not layer.down_proj.any()]
    assert len(silent) == 5 and not {0, 13} & set(silent)
    assert all(torch.equal(deep.layers[i].q_proj, deep.layers[i - 1].q_proj) for i in silent)


def test_layers_stand_at_most_twice() -> None:
    assert doubled(9, 14) == [1, 3, 4, 5, 7] and doubled(9, 9) == []
    with pytest.raises(FulgurError, match="9 layers cannot become 17"):
        doubled(9, 17)


def test_another_shape_is_refused() -> None:
    with pytest.raises(FulgurError, match="does not have the shape"):
        packed_weights(ASSETS / "60M", Model(shape("30M")))


def test_the_order_of_a_completion_is_read_from_the_folder(tmp_path: Path) -> None:
    assert not trained_suffix_first(tmp_path)
    for order, wanted in (("suffix-first", True), ("prefix-first", False)):
        (tmp_path / "config.json").write_text(json.dumps({"fulgur": {"fim": order}}))
        assert trained_suffix_first(tmp_path) is wanted
