"""The model before quantisation beside the quantised one, on the tasks of `fulgur eval model`.

    python -m lab.train compare --model src/fulgur/assets/60M --float FOLDER [--tasks FILE] [--json FILE]
FOLDER holds float weights (`python -m lab.train export float`). The float model is slow, so its greedy answers are
found by verifying the quantised ones as drafts: a pass over prompt and draft gives the float model's token at every
position. Where the two differ, its own token is taken and the rest of the draft is tried again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulgur.eval.answers import KV_TOKENS, Answers, ask_model, prompts
from fulgur.eval.asker import Asker
from fulgur.eval.model import label_of, rows, show, status_line
from fulgur.eval.score import score
from fulgur.eval.tasks import SHIPPED, Tasks, read_tasks
from fulgur.text.code_prompt import CodePrompt
from fulgur.text.edit_format import END, EOS, NOEDIT, SPECIAL_IDS, encode_pieces

if TYPE_CHECKING:
    import torch

    from lab.train.model import Model

STOPS = (SPECIAL_IDS[END], SPECIAL_IDS[EOS])


def load_float(folder: Path) -> Model:
    """Load a folder that `python -m lab.train export float` wrote (bf16 pieces)."""
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
        """Return its tokens after the prompt; `draft` is a guess of them."""
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
        """Return the most likely token after each position from `first` on."""
        import torch

        with torch.no_grad():
            logits: torch.Tensor = self.model.logits(torch.tensor([tokens]))[0, first:]
        return [int(token) for token in logits.argmax(-1)]


def resumed(draft: list[int], written: list[int]) -> list[int]:
    """Return the rest of a draft after the place that best matches the last tokens written."""
    for length in (6, 4, 3, 2):
        ending = written[-length:]
        near = range(max(0, len(written) - length - 12), min(len(draft) - length, len(written) + 12) + 1)
        for at in sorted(near, key=lambda place: abs(place - (len(written) - length))):
            if draft[at : at + length] == ending:
                return draft[at + length :][:64]
    return []


def ask_float(folder: Path, model: Asker, tasks: Tasks, quantised: Answers, say: Callable[[str], None]) -> Answers:
    """Run the same prompts through the float model, with the quantised answers as drafts."""
    reference = FloatModel(folder)
    tokenizer = model.tokenizer
    drafts = quantised.in_order()
    written: list[str] = []

    def answer(asked: CodePrompt, draft: str) -> str:
        guess = [*tokenizer.encode(draft), model.stops[0]]
        given = [*encode_pieces(tokenizer, asked.pieces), *tokenizer.encode(asked.begins)]  # no healing here
        tokens = reference.answer(given, guess, asked.max_tokens)
        return model.text(tokens)

    for ask, draft in zip(prompts(model, tasks), drafts, strict=True):
        if ask is None:
            written.append(NOEDIT)
            continue
        written.append(answer(ask, draft))
        say(f"{folder.name} (float): {len(written)}/{len(drafts)} answers")
    return Answers.of(tasks, written)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train compare", description="Grade a model before and after quantisation."
    )
    parser.add_argument("--model", type=Path, required=True, help="the quantised model's folder")
    parser.add_argument("--float", type=Path, required=True, help="the folder of float weights")
    parser.add_argument("--tasks", type=Path, default=SHIPPED)
    parser.add_argument("--only", choices=("edits", "completions"), help="one half of the tasks")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    tasks, say, label = read_tasks(args.tasks), status_line(), label_of(args.model)
    tasks.only(args.only)
    model = Asker(args.model, kv_tokens=KV_TOKENS)
    answers, _ = ask_model(model, tasks, say)
    floats = ask_float(args.float, model, tasks, answers, say)
    results = {label: score(tasks, answers), f"{label}-float": score(tasks, floats)}
    say("")
    show(results, None)
    if args.json:
        found = [row for name, scores in results.items() for row in rows(name, scores)]
        args.json.write_text(json.dumps({"rows": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
