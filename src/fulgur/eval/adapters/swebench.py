"""`fulgur eval swebench`: predictions for SWE-bench's own harness, one line per instance.

    {"instance_id": …, "model_name_or_path": …, "model_patch": …}

The agent works on the files of the base commit, without the history, which could contain the answer. Judging needs
SWE-bench's containers: `python -m swebench.harness.run_evaluation --predictions_path FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from fulgur.errors import UsageError
from fulgur.eval.agent.attempt import Result, Runner, add_runner_arguments, runner_from, work
from fulgur.sandbox import git
from fulgur.workspace import beneath
from fulgur.workspace.diff import unified
from fulgur.workspace.ignore import walk

Row = dict[str, Any]


class Instance(msgspec.Struct):
    """The fields of a line of the data set that the agent needs."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this evaluation."""
    parser.add_argument("--instances", type=Path, required=True, metavar="FILE", help="the data set, as JSON lines")
    parser.add_argument(
        "--repos", type=Path, required=True, metavar="DIR", help="a folder of clones, owner/name as owner__name"
    )
    parser.add_argument(
        "--predictions",
        type=Path,
        required=True,
        metavar="FILE",
        help="the file to write; an existing one is continued",
    )
    parser.add_argument("--name", help="model_name_or_path of the predictions (default: fulgur and the model)")
    add_runner_arguments(parser, 1800.0)


def run(args: argparse.Namespace) -> list[Row]:
    """Make the missing predictions."""
    instances = read_instances(args.instances)
    done = {line["instance_id"] for line in _lines(args.predictions)}
    name = args.name or f"fulgur+{args.model or 'default'}"
    results = []
    for instance in instances:
        if instance.instance_id in done:
            continue
        result = Result(name=instance.instance_id, kind="swebench", about=instance.repo)
        patch = predict(instance, args.repos, runner_from(args), result)
        line = {"instance_id": instance.instance_id, "model_name_or_path": name, "model_patch": patch}
        append(args.predictions, line)
        results.append(result)
        print(f"{instance.instance_id:40}{result.seconds:>8.1f} s  {patch.count(chr(10)):>6} lines  {result.problem}")
    patches = [line["model_patch"] for line in _lines(args.predictions)]
    return [
        {"name": "swebench.predictions", "value": len(patches), "unit": "", "n": len(instances)},
        {"name": "swebench.empty", "value": sum(not patch for patch in patches), "unit": ""},
        {"name": "swebench.seconds", "value": round(sum(result.seconds for result in results), 1), "unit": "s"},
        {"name": "swebench.output_tokens", "value": sum(result.output_tokens for result in results), "unit": "tokens"},
    ]


def read_instances(path: Path) -> list[Instance]:
    """Read the data set; every line must have the required fields."""
    try:
        return [msgspec.json.decode(line, type=Instance) for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is not a SWE-bench data set in JSON lines: {error}") from None


def predict(instance: Instance, repos: Path, runner: Runner, result: Result) -> str:
    """Let the agent work on one instance; returns its changes as a patch for `git apply`."""
    clone = repos / instance.repo.replace("/", "__")
    if not (clone / ".git").exists():
        raise UsageError(f"{clone} is not a clone", hint=f"git clone https://github.com/{instance.repo} {clone}")
    with tempfile.TemporaryDirectory(prefix="fulgur-swebench-", ignore_cleanup_errors=True) as place:
        folder = Path(place).resolve() / instance.repo.rpartition("/")[2]
        check_out(clone.resolve(), instance.base_commit, folder)
        before = texts(folder)
        prompt = (
            "Resolve this issue in the project. Change its source; tests that show the problem are run afterwards.\n\n"
            + instance.problem_statement
        )
        result.problem = work(prompt, folder, runner, result)
        return patch_of(before, texts(folder))


def check_out(clone: Path, commit: str, folder: Path) -> None:
    """Check out the files of a commit without its repository. No hooks or filters run."""
    git.write(clone, clone, "worktree", "add", "--quiet", "--no-checkout", "--detach", "--", str(folder), commit)
    try:
        off = git.no_programs(folder, folder)
        git.write(folder, folder, f"--work-tree={folder}", "reset", "--hard", "--quiet", off=off)
    finally:
        (folder / ".git").unlink()
        git.write(clone, clone, "worktree", "prune")


def texts(folder: Path) -> dict[str, str]:
    """The text files that are not ignored, by name."""
    found = {}
    for entry in walk(folder):
        path = Path(entry.path)
        data = beneath.read(folder, path) if entry.is_file(follow_symlinks=False) else b"\0"
        try:
            if b"\0" not in data:
                found[path.relative_to(folder).as_posix()] = data.decode()
        except UnicodeDecodeError:
            continue
    return found


def patch_of(before: dict[str, str], after: dict[str, str]) -> str:
    """The changed files as a patch in git's format."""
    parts = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        lines = unified(old or "", new or "", name).splitlines(keepends=True)
        head = [f"diff --git a/{name} b/{name}\n"]
        if old is None:
            head, lines[:1] = [*head, "new file mode 100644\n"], ["--- /dev/null\n"] if lines else []
        elif new is None:
            head, lines[1:2] = [*head, "deleted file mode 100644\n"], ["+++ /dev/null\n"] if lines else []
        parts += [*head, *lines]
    return "".join(parts)


def append(path: Path, line: dict[str, str]) -> None:
    """Append a line; it is on disk when this returns."""
    with path.open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _lines(path: Path) -> list[dict[str, str]]:
    """The predictions so far. A line truncated by a kill is removed from the file."""
    if not path.is_file():
        return []
    data = path.read_bytes()
    if not data.endswith(b"\n") and data:
        whole = data[: data.rfind(b"\n") + 1]
        part = path.with_name(path.name + ".part")
        part.write_bytes(whole)
        shutil.move(part, path)
        data = whole
    try:
        return [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError as error:
        raise UsageError(f"{path} is not a predictions file: {error}", hint="Name another file.") from None
