"""The drafting head (MTP): found in folders and GGUF files, and the mathematics of transformers' own layer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fulgur.kernels.reference import FloatModel, rms_norm
from fulgur.model.config import DeltaShape
from fulgur.model.folder import FolderSource
from fulgur.model.pack import pair_tiles
from fulgur.model.packed_folder import save_packed
from fulgur.model.random import RandomSource, random_model, tiny_config, write_hf_folder
from fulgur.model.weights import assemble, load

CASES = {
    "qwen3_5": tiny_config("qwen3_5", draft_vocab=301, delta=DeltaShape(2, 6, 16, 32, 4)),
    "qwen3_5_moe": tiny_config("qwen3_5_moe", draft_vocab=301),
    "qwen3_next": tiny_config("qwen3_next", draft_vocab=301),
}
TOKENS = np.random.default_rng(7).integers(0, 301, 50)


@pytest.mark.parametrize("family", CASES)
def test_the_head_is_transformers_own_layer(family: str, tmp_path: Path) -> None:
    """transformers has no such head. So its layer is run as a model of one layer, on what goes into the head's."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config, tensors = CASES[family], random_model(CASES[family], 3)
    write_hf_folder(tmp_path / "model", config, tensors)
    one = replace(config, n_layers=1, layer_kinds=(), delta=None, draft_vocab=0)
    layer = {"model." + name.removeprefix("mtp."): value for name, value in tensors.items() if "mtp.layers" in name}
    head = {name: tensors[name] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    write_hf_folder(tmp_path / "layer", one, layer | head | {"model.norm.weight": tensors["mtp.norm.weight"]})

    def run(name: str, **options: object) -> tuple[np.ndarray, np.ndarray]:
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        with torch.no_grad():
            out = model(**options, output_hidden_states=True)
        return out.logits[0].numpy(), out.hidden_states[-1][0].numpy()

    _, hidden = run("model", input_ids=torch.from_numpy(TOKENS)[None])
    embedded = tensors["model.embed_tokens.weight"][TOKENS]
    norms = [1 + tensors[f"mtp.pre_fc_norm_{kind}.weight"] for kind in ("embedding", "hidden")]
    both = rms_norm(embedded[1:], norms[0], config.norm_eps), rms_norm(hidden[:-1], norms[1], config.norm_eps)
    x = np.concatenate(both, axis=1) @ tensors["mtp.fc.weight"].T
    theirs, _ = run("layer", inputs_embeds=torch.from_numpy(x)[None])
    ours = FloatModel(FolderSource(tmp_path / "model")).draft_logits(TOKENS)
    assert theirs.std() > 0.5
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


def test_the_tensors_decide_whether_there_is_a_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = CASES["qwen3_next"]
    write_hf_folder(tmp_path, config, random_model(config, 3))
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    del raw["mtp_num_hidden_layers"], raw["draft_vocab_size"]
    path.write_text(json.dumps(raw))  # Qwen3-Next's are silent
    assert FolderSource(tmp_path).config == config
    without = replace(config, draft_vocab=0)
    write_hf_folder(tmp_path, without, random_model(without, 3))
    assert FolderSource(tmp_path).config == without and not caplog.records
    path.write_text(json.dumps({**raw, "mtp_num_hidden_layers": 1}))
    assert FolderSource(tmp_path).config == without
    assert "its tensors are missing" in caplog.text


def test_a_vision_models_head_and_fused_experts(tmp_path: Path) -> None:
    """`model.language_model.*` beside `mtp.*`, with the experts of a layer in one tensor."""
    config = CASES["qwen3_5_moe"]
    tensors = random_model(config, 3)
    stored: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        if ".experts." in name:
            continue
        stored[name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name] = value
    for layer in [f"model.layers.{i}." for i in range(config.n_layers)] + ["mtp.layers.0."]:
        each = [f"{layer}mlp.experts.{e}." for e in range(config.n_experts)]
        both = [np.concatenate([tensors[e + "gate_proj.weight"], tensors[e + "up_proj.weight"]]) for e in each]
        to = layer.replace("model.", "model.language_model.", 1) + "mlp.experts."
        stored[to + "gate_up_proj"] = np.stack(both)
        stored[to + "down_proj"] = np.stack([tensors[e + "down_proj.weight"] for e in each])
    write_hf_folder(tmp_path, config, stored)
    raw = config.to_json()
    nested = {"model_type": "qwen3_5_moe", "tie_word_embeddings": False, "text_config": raw}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    source = FolderSource(tmp_path)
    assert source.config == config
    for name in (name for name in tensors if name.startswith("mtp.")):
        shape = tensors[name].shape
        value = source.vector(name) if len(shape) == 1 else source.rows(name, np.arange(shape[0]))
        np.testing.assert_array_equal(value, tensors[name], err_msg=name)


def test_a_packed_folder_keeps_the_head(tmp_path: Path) -> None:
    config = replace(CASES["qwen3_5_moe"], draft_vocab=128)
    write_hf_folder(tmp_path / "wide", config, random_model(config, 3))
    weights = load(tmp_path / "wide", bits=8, group=32)
    assert weights.matrices["mtp.head"].bits == 4 and weights.matrices["mtp.head"].rows == 128
    save_packed(weights, tmp_path / "packed")
    again = load(tmp_path / "packed")
    assert again.config == weights.config and again.experts.keys() == weights.experts.keys()
    for name in (name for name in weights.matrices if name.startswith("mtp.")):
        np.testing.assert_array_equal(again.matrices[name].data, pair_tiles(weights.matrices[name]))
    # A token reads the model, not the head that guesses.
    plain = assemble(RandomSource(replace(config, draft_vocab=0), 3), bits=8, group=32)
    assert abs(weights.bytes_per_token - plain.bytes_per_token) < 4000 < weights.nbytes - plain.nbytes
