"""The losses of a run as one SVG: training and held-out loss over tokens, stage after stage.

python -m lab.train plot --run RUN --out losses.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fulgur.errors import FulgurError

STAGES = ("pretrain", "anneal", "distil")
COLOURS = {"loss": "#9aa5b1", "heldout_code": "#1f77b4", "heldout_fim": "#2ca02c", "heldout_edits": "#d62728"}
WIDTH, HEIGHT, MARGIN = 860, 380, 52


def read_losses(run: Path) -> list[tuple[str, list[dict[str, float]]]]:
    found = []
    for stage in STAGES:
        file = run / stage / "losses.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        rows = [row for row in rows if "tokens" in row]
        if rows:
            found.append((stage, rows))
    return found


def draw(stages: list[tuple[str, list[dict[str, float]]]]) -> str:
    """Draw one panel per stage, side by side, all with the same vertical scale."""
    if not stages:
        raise FulgurError("there are no losses to plot", hint="Give the folder of a run that has trained.")
    values = sorted(row[key] for _, rows in stages for row in rows for key in COLOURS if key in row)
    low, high = values[0] * 0.95, values[int(0.995 * (len(values) - 1))] * 1.05
    panel = (WIDTH - MARGIN) / len(stages)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">'
    ]
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')

    def y(value: float) -> float:
        return MARGIN + (HEIGHT - 2 * MARGIN) * (1 - (min(max(value, low), high) - low) / max(high - low, 1e-9))

    for i in range(6):
        value = low + (high - low) * i / 5
        parts.append(f'<line x1="{MARGIN}" x2="{WIDTH - 8}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for index, (stage, rows) in enumerate(stages):
        left = MARGIN + index * panel
        most = max(1, *(row["tokens"] for row in rows))
        parts.append(f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{MARGIN}" y2="{HEIGHT - MARGIN}" stroke="#bbb"/>')
        parts.append(f'<text x="{left + 8:.1f}" y="{MARGIN - 10}" font-weight="bold">{stage}</text>')
        parts.append(
            f'<text x="{left + panel - 8:.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="end">'
            f"{most / 1e6:.0f} M tokens</text>"
        )
        for key, colour in COLOURS.items():
            points = [(left + 4 + (panel - 12) * row["tokens"] / most, y(row[key])) for row in rows if key in row]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{1 if key == "loss" else 2}"/>'
            )
    for index, (key, colour) in enumerate(COLOURS.items()):
        parts.append(
            f'<text x="{MARGIN + 8 + index * 130}" y="{HEIGHT - 12}" fill="{colour}">{key.replace("_", " ")}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.train plot", description="Plot the losses of a run.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    args.out.write_text(draw(read_losses(args.run)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
