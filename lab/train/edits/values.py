"""Realistic arguments for instructions: names, types, values, messages."""

from __future__ import annotations

import ast
import keyword
import random
import re
from pathlib import Path

from lab.train.edits.strange import new_name


def _words() -> dict[str, list[str]]:
    text = (Path(__file__).parent / "words.txt").read_text(encoding="utf-8")
    sections = re.split(r"(?m)^\[(\w+)\]$", text)[1:]
    return {name: body.split() for name, body in zip(sections[::2], sections[1::2], strict=True)}


WORDS = _words()
SUFFIXES = ["list", "name", "id", "value", "count", "dict", "map", "path", "obj", "str", "data", "info"]
PARAMETERS = WORDS["parameters"]
LOCALS = WORDS["locals"]
FUNCTIONS = WORDS["functions"]
CLASSES = WORDS["classes"]
TYPE_LIST = ["Any", "object", "str | None", "int | None", "float | None", "bool | None", "list[str] | None"]
TYPE_LIST += ["Path | None", "dict[str, Any] | None", "Sequence[str] | None", "bytes | None", "Callable | None"]
TYPE_LIST += ["list[int] | None"]
NUMBERS = [0, 1, 2, 3, 5, 8, 10, 16, 20, 25, 30, 32, 50, 60, 64, 100, 120, 128, 200, 256, 300, 500, 512, 1000, 1024]
NUMBERS += [3600, 4096, 5000, 8080, 10000]
EXCEPTIONS = WORDS["exceptions"]
CAUGHT = WORDS["caught"]
DECORATORS = WORDS["decorators"]
LOGGERS = ["logger", "logger", "logger", "log", "LOG", "_logger", "logging", "self.logger", "self.log"]
LEVELS = ["debug", "info", "warning", "error", "debug", "info"]
STRINGS = WORDS["strings"]


def exception(rng: random.Random, *, but: str = "") -> str:
    return rng.choice([name for name in EXCEPTIONS if name != but])


def caught(rng: random.Random) -> str:
    return rng.choice(CAUGHT).replace("_", " ")


def annotation(default: str, rng: random.Random) -> str:
    """A type for a default value with this text."""
    if default in ("True", "False"):
        return "bool"
    if default == "None":
        return rng.choice([kind for kind in TYPE_LIST if kind.endswith("None") or kind in ("Any", "object")])
    if default[0] in "\"'":
        return "str"
    return "float" if "." in default else "int"


def other_value(node: ast.Constant, rng: random.Random) -> str:
    """Another literal of the same kind, as code."""
    value = node.value
    if value is None:
        return rng.choice(["0", "False", "True", "1", '""', "10"])
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        near = [*NUMBERS, value + 1, value * 2, value - 1 if value > 0 else value + 2]
        return str(rng.choice([number for number in near if number != value]))
    if isinstance(value, float):
        near_f = [0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 0.01, 0.001, 1e-3, 0.9, 0.95, 0.99, value * 2]
        return repr(rng.choice([number for number in near_f if number != value]))
    if isinstance(value, str):
        return '"' + rng.choice([text for text in STRINGS if text != value]) + '"'
    return "None"


def literal_for(name: str, rng: random.Random) -> str:
    """A plausible default for a parameter of this name."""
    if re.search(
        r"verbose|debug|strict|force|quiet|dry|recursive|reverse|allow|ignore|raise|overwrite|backup|inclus", name
    ):
        return rng.choice(["False", "False", "True"])
    if re.search(r"size|limit|count|num|retries|depth|offset|index|width|height|port|length|page|seed|step", name):
        return rng.choice(["0", "1", "3", "5", "10", "32", "64", "100", "128", "1000", "None"])
    if re.search(r"timeout|delay|interval|threshold|scale|weight|score", name):
        return rng.choice(["1.0", "30", "10.0", "0.5", "5", "60", "None"])
    if re.search(
        r"name|path|encoding|prefix|suffix|label|mode|host|url|locale|fmt|separator|status|message|language", name
    ):
        return rng.choice(['""', '"utf-8"', "None", '"default"', "None", '"auto"', '","'])
    return rng.choice(["None", "None", "None", "0", "True", "False"])


def fresh(taken: set[str], pool: list[str], rng: random.Random) -> str:
    """A name that is neither taken nor a keyword: from the pool, or sometimes a newly invented one."""
    for _ in range(20):
        name = new_name(rng, pool[0]) if rng.random() < 0.15 else rng.choice(pool)
        if name not in taken and not keyword.iskeyword(name):
            return name
    return f"{rng.choice(pool)}_{rng.choice(['new', 'alt', 'extra'])}"


def variation(name: str, taken: set[str], rng: random.Random) -> str:
    """A new name for an old one, as people rename: another word, an affix, or another case."""
    private = name.startswith("_") and not name.startswith("__")
    bare = name.lstrip("_")
    for _ in range(12):
        kind = rng.random()
        if bare.isupper():
            new = rng.choice(
                [f"DEFAULT_{bare}", f"MAX_{bare}", f"{bare}_VALUE", f"{bare}_COUNT", f"_{bare}", f"BASE_{bare}"]
            )
        elif bare[:1].isupper():
            new = rng.choice(
                [f"Base{bare}", f"{bare}Impl", f"{bare}Base", f"_{bare}", f"Abstract{bare}", rng.choice(CLASSES)]
            )
        elif kind < 0.15:
            new = new_name(rng, name)
        elif kind < 0.35:
            new = rng.choice(LOCALS)
        elif kind < 0.5 and "_" in bare:
            words = bare.split("_")
            new = rng.choice(
                [words[0], words[-1], "_".join(reversed(words)), words[0] + "".join(map(str.title, words[1:]))]
            )
        elif kind < 0.75:
            prefix = rng.choice(
                ["new", "old", "raw", "current", "max", "num", "is", "my", "all", "base", "input", "default"]
            )
            new = f"{prefix}_{bare}"
        else:
            new = f"{bare}_{rng.choice(SUFFIXES)}"
        if private and rng.random() < 0.7:
            new = f"_{new.lstrip('_')}"
        if new not in taken and new != name and new.isidentifier() and not keyword.iskeyword(new):
            return new
    return f"{name}_2"
