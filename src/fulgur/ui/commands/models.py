"""`fulgur models`: list the models here, find which would fit, and fetch, shrink and remove them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path

from fulgur.errors import FulgurError, UsageError
from fulgur.hub import catalogue, here
from fulgur.ui.foreign import note, out, out_json, progress
from fulgur.workspace.folders import embedded_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(json=False)  # for plain `fulgur models`
    commands = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = commands.add_parser("list", help="the models on this machine, and where each runs (also without ACTION)")
    fits = commands.add_parser("fit", help="which of the catalogue fit this machine, and how fast they would be")
    for sub in (listing, fits):
        sub.add_argument("--json", action="store_true", help="as one JSON object")
    pull = commands.add_parser("pull", help="fetch a model from a hub; run again to resume")
    pull.add_argument(
        "name", metavar="NAME", help="a name of the catalogue, or OWNER/REPOSITORY[:PART of a GGUF file's name]"
    )
    remove = commands.add_parser("rm", help="delete a fetched model")
    remove.add_argument("name", metavar="NAME", help="one of `fulgur models list`")
    quantise = commands.add_parser("quantize", help="write a copy in fewer bits, for the CPU")
    quantise.add_argument("name", metavar="NAME", help="a fetched model, a folder or a GGUF file")
    quantise.add_argument("--bits", type=int, choices=(4, 8), default=4, help="bits per weight (default 4)")
    check = commands.add_parser("check", help="verify the checksums of the models here, byte by byte")
    check.add_argument("names", metavar="NAME", nargs="*", help="models of `fulgur models list` (default: all)")


def run(args: argparse.Namespace) -> int:
    actions = {
        "list": _list, "fit": _fit, "pull": _pull, "rm": _remove, "quantize": _quantise, "check": _check
    }  # fmt: skip
    return actions[args.action or "list"](args)


def _list(args: argparse.Namespace) -> int:
    rows = [_described(embedded_name(folder), folder, "ships with fulgur") for folder in _embedded()]
    rows += [_described(model.name, model.weights, model.repo) for model in here.fetched()]
    if args.json:
        out_json(json.dumps({"models": rows}, indent=2))
        return 0
    _table(("model", "GB", "runs", "from"), ((row["name"], row["gb"], row["runs"], row["from"]) for row in rows))
    out("\nUse one with `fulgur -m NAME`. `fulgur models fit` shows which others would run here.")
    return 0


def _embedded() -> list[Path]:
    from fulgur.workspace.folders import embedded_models

    return embedded_models()


def _described(name: str, path: Path, source: str) -> dict[str, str]:
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 1e9
    return {"name": name, "gb": f"{size:.2f}" if size < 1 else f"{size:.1f}", "runs": _runs(path), "from": source}


def _runs(path: Path) -> str:
    """Where the engine would run it, or why it cannot."""
    from fulgur.engine.device import choose
    from fulgur.engine.load import EngineOptions
    from fulgur.model.config import ModelConfig

    try:
        if path.is_file():
            ModelConfig.from_gguf(path)
        else:
            ModelConfig.from_folder(path)
        return "on the CPU" if choose(EngineOptions(path)).gpu is None else "on the GPU"
    except FulgurError as error:
        where = f"{path / 'config.json'}: "
        return f"no: {error.message.removeprefix(where)}"


def _fit(args: argparse.Namespace) -> int:
    from fulgur.hub.fit import devices, families, fit

    machine = devices()
    found = fit(machine, *families())
    if args.json:
        rows = [
            {"name": f.entry.name, "repo": f.entry.repo, "licence": f.entry.licence, "disk_gb": f.entry.disk_gb}
            | {"device": f.device.name, "need_gb": round(f.need_gb, 1), "tokens_s": round(f.tokens_s, 1)}
            | {"runs": not f.why_not, "why_not": f.why_not}
            for f in found
        ]
        out_json(json.dumps({"models": rows}, indent=2))
        return 0
    for device in machine:
        out(f"{device.name}: {device.memory_gb:.0f} GB, {device.bandwidth_gb_s:,.0f} GB/s")
    out("")
    _table(
        ("model", "download", "memory", "expected", "licence", ""),
        (
            (
                f.entry.name,
                f"{f.entry.disk_gb:.1f} GB",
                f"{f.need_gb:.1f} GB",
                "–" if f.why_not else f"{f.tokens_s:,.{0 if f.tokens_s > 20 else 1}f} tok/s",
                f.entry.licence,
                f.why_not or f"on {f.device.name}{'' if f.device.gpu else ', quantized to 4 bits'}",
            )
            for f in found
        ),
    )
    out("\nMemory counts 32k tokens of context. Fetch one with `fulgur models pull NAME`.")
    return 0


def _pull(args: argparse.Namespace) -> int:
    from fulgur.hub import pull

    job = pull.plan(catalogue.find(args.name))
    out(f"{job.wanted.repo}, revision {job.revision[:12]}: {len(job.files)} files, {job.size / 1e9:.2f} GB")
    bar = _Bar()
    try:
        folder = pull.fetch(job, bar.show)
    except KeyboardInterrupt:
        bar.end()
        note("Stopped. The same command resumes from here.")
        return 130
    bar.end()
    out(f"✓ every file checked: {folder}")
    runs = _runs(here.get(job.wanted.name).weights)
    if runs.startswith("no"):
        note(f"fulgur: this version cannot run it: {runs[4:]}")
        return 1
    out(f"It runs {runs}: fulgur -m {job.wanted.name}")
    if runs == "on the CPU" and any(file.name.endswith(".safetensors") for file in job.files):
        out(f"In 4 bits it is about twice as fast: fulgur models quantize {job.wanted.name}")
    return 0


def _remove(args: argparse.Namespace) -> int:
    out(f"removed {args.name}: {here.remove(args.name) / 1e9:.2f} GB free again")
    return 0


def _check(args: argparse.Namespace) -> int:
    from fulgur.model import checksums

    models = {embedded_name(folder): folder for folder in _embedded()}
    models |= {model.name: model.weights for model in here.fetched()}
    if unknown := [name for name in args.names if name not in models]:
        raise UsageError(f"there is no model {unknown[0]!r}", hint=f"Installed: {', '.join(models)}")
    damaged = 0
    for name in args.names or models:
        try:
            compared = checksums.check(models[name], whole=True)
            out(f"✓ {name}: {compared} files" if compared else f"– {name}: it was fetched before there were checksums")
        except FulgurError as error:
            damaged += 1
            note(f"✗ {name}: {error}")
    return 1 if damaged else 0


def _quantise(args: argparse.Namespace) -> int:
    from fulgur.model import checksums
    from fulgur.model.packed_folder import save_packed
    from fulgur.model.weights import load

    path = Path(args.name)
    if path.exists():
        name, repo, revision = path.stem if path.is_file() else path.resolve().name, str(path.resolve()), "local"
    else:
        model = here.get(args.name)
        name, path, repo, revision = model.name, model.weights, model.repo, model.revision
    folder = here.root() / f"{name}-{args.bits}bit"
    if folder.exists():
        raise UsageError(f"{folder.name} already exists", hint=f"Remove it first: fulgur models rm {folder.name}")
    part = folder.with_name(folder.name + here.PART)
    checksums.check(path, whole=True)
    weights = load(path, bits=args.bits, head_bits=8)
    with here.writing(part):
        save_packed(weights, part, companions=path if path.is_dir() else None)
        files = [{"name": file.name, "size": file.stat().st_size} for file in sorted(part.iterdir())]
        record = {"repo": repo, "revision": revision, "bits": args.bits, "files": files}
        (part / here.RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        part.rename(folder)
    out(f"{folder.name}: {weights.nbytes / 1e9:.2f} GB. Use it with `fulgur -m {folder.name}`.")
    return 0


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        out("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


class _Bar:
    """One line that redraws itself on a terminal; elsewhere, a line every ten per cent."""

    def __init__(self) -> None:
        self._start, self._first, self._drawn, self._said = time.monotonic(), -1, 0.0, -1
        self._live = False

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first < 0:
            self._first = done  # what was fetched earlier does not count as speed
        if now - self._drawn < 0.1 and done < total:
            return
        self._drawn = now
        share = done / total if total else 1.0
        rate = (done - self._first) / max(now - self._start, 1e-3)
        seconds = int((total - done) / rate) if rate > 0 else 0
        left = f"{seconds // 60}:{seconds % 60:02d} left" if seconds else ""
        size = f"{done / 1e9:.2f} of {total / 1e9:.2f} GB"
        self._live = progress(f"  {'█' * int(share * 30):<30}  {size}  {rate / 1e6:.0f} MB/s  {left}")
        if not self._live and int(share * 10) > self._said:
            self._said = int(share * 10)
            note(f"  {share:4.0%}  {size}")

    def end(self) -> None:
        if self._live:
            note("")
