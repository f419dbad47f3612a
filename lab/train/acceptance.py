"""How often the guesses of a trained hybrid's drafting head match what the model says, on held-out packages.

    python -m lab.train acceptance --run RUN --out acceptance.json
`greedy` follows the model's own greedy text after the beginnings of held-out files. The other rows follow held-out text
and count where training counts: every token of code, the hidden text of completions, the answers of edits. The n-th
fraction is of drafts whose earlier guesses were right. The engine measures the same through its own drafts
(`fulgur.bench`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from lab.train.hybrid import restored
from lab.train.hybrid_model import Hybrid
from lab.train.streams import heldout_rows

ROWS, AT_ONCE = 64, 8
PROMPT, WRITTEN = 448, 64  # tokens of the greedy part


@torch.no_grad()
def said_and_guessed(model: Hybrid, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What the model says after every token, and the n-th guess of it."""
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        weight = model.rounded_embedding()
        embedded, hidden = model.hidden(tokens, weight)
        said = functional.linear(hidden, weight).argmax(-1)
        drafts = model.guesses(embedded, hidden)
        return said, [functional.linear(x, weight[: model.config.draft_vocab]).argmax(-1) for x in drafts]


def count(said: Tensor, guessed: list[Tensor], text: Tensor, counted: Tensor) -> Tensor:
    """For each n, count the drafts that reach guess n, and those that have it right. A draft begins after every counted
    token (`text` and `counted` are shifted by one, like `said`) and goes on while its guesses match the text."""
    alive, rows = counted.clone(), []
    for n, guess in enumerate(guessed):
        here = alive[:, : text.shape[1] - n]
        right = here & (guess == said)[:, n:]
        rows.append(torch.stack((here.sum(), right.sum())))
        alive = torch.zeros_like(alive)
        # After a right guess the text must continue as the model says, else the slots would hold another token.
        alive[:, : text.shape[1] - n] = right & (said == text)[:, n:]
    return torch.stack(rows)


def over_rows(model: Hybrid, tokens: Tensor, counted: Tensor) -> list[float]:
    total = torch.zeros((3, 2), dtype=torch.long, device=tokens.device)
    for start in range(0, len(tokens), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        said, guessed = said_and_guessed(model, tokens[part, :-1])
        total += count(said, guessed, tokens[part, 1:], counted[part, 1:])
    return [round(float(right) / max(float(reached), 1.0), 4) for reached, right in total]


@torch.no_grad()
def written_greedily(model: Hybrid, prompts: Tensor, length: int) -> Tensor:
    """Run a whole pass for every token: slow, but there is no state to keep and nothing to get wrong."""
    tokens = prompts
    for _ in range(length):
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            weight = model.rounded_embedding()
            last = functional.linear(model.hidden(tokens, weight)[1][:, -1], weight).argmax(-1)
        tokens = torch.cat((tokens, last[:, None]), 1)
    return tokens


def measure(run: Path, device: torch.device) -> dict[str, list[float]]:
    model, result = restored(run, device), {}
    prompt = min(PROMPT, model.config.max_context - WRITTEN)
    for kind in ("code", "fim", "edits"):
        rows = heldout_rows(run / "rows", kind, ROWS, device)
        if rows is None:
            continue
        tokens, weights = rows
        result[kind] = over_rows(model, tokens, weights > 0)
        if kind == "code":
            text = written_greedily(model, tokens[:, :prompt], WRITTEN)
            counted = torch.zeros_like(text, dtype=torch.bool)
            counted[:, prompt:] = True
            result["greedy"] = over_rows(model, text, counted)
    return result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train acceptance", description="Measure how often the drafting head is right."
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    found = measure(args.run, torch.device(args.device))
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
