"""The model before quantisation, in torch: its greedy answers, found in few passes by checking the quantised ones.

A pass over prompt and draft tells for every position which token the float model would have written. Where it agrees
with the draft the answer is the same; where it parts, its own token is taken and the rest of the draft is tried again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulgur.text.edit_format import END, EOS, SPECIAL_IDS

if TYPE_CHECKING:
    import torch

    from lab.train.model import Model

STOPS = (SPECIAL_IDS[END], SPECIAL_IDS[EOS])


def load_float(folder: Path) -> Model:
    """A folder that `fulgur train export float` wrote (bf16 pieces)."""
    import torch
    from safetensors.torch import load_file

    from fulgur.model.config import ModelConfig
    from lab.train.model import Model, hf_name

    model = Model(ModelConfig.from_folder(folder))
    stored = load_file(str(folder / "model.safetensors"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(stored[hf_name(name)].float())
    model.eval()
    return model


class FloatModel:
    """Greedy answers of the float model."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = load_float(folder)
        self.context = int(self.model.config.max_context)

    def answer(self, prompt: list[int], draft: list[int], most: int) -> list[int]:
        """Its tokens after the prompt; `draft` is a guess of them."""
        written: list[int] = []
        while len(written) < most and len(prompt) + len(written) < self.context:
            rest = draft[len(written) :] if draft[: len(written)] == written else resumed(draft, written)
            rest = rest[: self.context - len(prompt) - len(written)]
            best = self.best([*prompt, *written, *rest], len(prompt) + len(written) - 1)
            agreed = 0
            while agreed < len(rest) and best[agreed] == rest[agreed] and rest[agreed] not in STOPS:
                agreed += 1
            written += [*rest[:agreed], best[agreed]]
            if written[-1] in STOPS:
                break
        return written[:most]

    def best(self, tokens: list[int], first: int) -> list[int]:
        """The most likely token after each position from `first` on."""
        import torch

        with torch.no_grad():
            logits: torch.Tensor = self.model.logits(torch.tensor([tokens]))[0, first:]
        return [int(token) for token in logits.argmax(-1)]


def resumed(draft: list[int], written: list[int]) -> list[int]:
    """The rest of a draft after the place that best matches the last tokens written."""
    for length in (6, 4, 3, 2):
        ending = written[-length:]
        near = range(max(0, len(written) - length - 12), min(len(draft) - length, len(written) + 12) + 1)
        for at in sorted(near, key=lambda place: abs(place - (len(written) - length))):
            if draft[at : at + length] == ending:
                return draft[at + length :][:64]
    return []
