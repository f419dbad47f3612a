"""What simpler methods answer: copying, prompt lookup, n-grams, and regular expressions with the refactoring engine."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fulgur.text.edit_format import CALL, END, NOEDIT
from fulgur.train.edits import EditExample
from fulgur.train.evaluate_tasks import Hole

NO = NOEDIT + END
LIBRARY = (
    "argparse",
    "ast",
    "csv",
    "dataclasses",
    "inspect",
    "logging/__init__",
    "os",
    "pathlib",
    "shutil",
    "subprocess",
)


class Copy:
    """The region as it is; for a completion the line above."""

    name = "copy"

    def edit(self, example: EditExample) -> str:
        return example.region + END

    def fill(self, hole: Hole, several: bool) -> str:
        above = [line.strip() for line in hole.prefix.split("\n")[:-1] if line.strip()]
        return "\n".join(above[-3:]) if several else (above[-1] if above else "")


def words(text: str) -> list[str]:
    """Code as words, operators and line breaks with their indentation; joined they are the text."""
    return re.findall(r"\n[ \t]*|\w+|[^\w\s]|[ \t]+", text)


class Lookup:
    """Goes on as an earlier place did that ends with the same words; an edit begins at the region and so repeats it."""

    name = "lookup"

    def edit(self, example: EditExample) -> str:
        return example.region + END

    def fill(self, hole: Hole, several: bool) -> str:
        before, after = words(hole.prefix), words(hole.suffix)
        history = [*before, *after]
        for length in (8, 6, 5, 4, 3, 2):
            ending = before[-length:]
            if len(ending) < length:
                continue
            for at in range(len(history) - length - 1, -1, -1):
                if at + length != len(before) and history[at : at + length] == ending:
                    return limited(history[at + length :], several)
        return ""


def limited(found: list[str], several: bool) -> str:
    """Up to the end of the line, or of the third."""
    text = "".join(found[:200])
    return "\n".join(text.split("\n")[: 3 if several else 1])


class Ngram:
    """Five words of history with back-off, counted over the standard library and the text around the cursor."""

    name = "ngram"
    order = 5

    def edit(self, example: EditExample) -> str:
        lines = example.region.split("\n", 1)
        text = example.above + example.region + example.below
        written = self.write(words(text), words(lines[0] + "\n"), len(words(example.region)))
        return lines[0] + "\n" + written + END

    def fill(self, hole: Hole, several: bool) -> str:
        written = self.write(words(hole.prefix + hole.suffix), words(hole.prefix)[-self.order :], 60 if several else 25)
        return limited(words(written), several)

    def write(self, local: list[str], start: list[str], length: int) -> str:
        near = counts(local, self.order)
        history, out = list(start), []
        for _ in range(length):
            choice = next((c for n in range(self.order - 1, 0, -1) if (c := self.best(near, history, n))), None)
            if choice is None:
                break
            out.append(choice)
            history.append(choice)
        return "".join(out)

    def best(self, near: dict[tuple[str, ...], Counter[str]], history: list[str], n: int) -> str | None:
        key = tuple(history[-n:])
        found = near.get(key, Counter()) + Counter() or library(self.order).get(key, Counter())
        return found.most_common(1)[0][0] if found else None


def counts(tokens: list[str], order: int) -> dict[tuple[str, ...], Counter[str]]:
    table: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for at in range(1, len(tokens)):
        for n in range(1, min(order, at + 1)):
            table[tuple(tokens[at - n : at])][tokens[at]] += 1
    return table


@cache
def library(order: int) -> dict[tuple[str, ...], Counter[str]]:
    """Counts over a part of the standard library that is the same everywhere."""
    table: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for name in LIBRARY:
        path = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
        if path.exists():
            for key, found in counts(words(path.read_text(encoding="utf-8")), order).items():
                table[key].update(found)
    return table


class Codemod:
    """Regular expressions read the instruction; text rules and refactoring calls do it. Completion is not its work."""

    name = "codemod"

    def edit(self, example: EditExample) -> str:
        instruction = re.sub(r"[`'\"](\S+?)[`'\"]", r"\1", example.instruction or "").strip(" .?!")
        for pattern, rule in RULES:
            match = re.search(pattern, instruction, re.IGNORECASE)
            if match:
                try:
                    return rule(example.region, match)
                except (SyntaxError, ValueError, IndexError):
                    return NO
        return NO

    def fill(self, hole: Hole, several: bool) -> str:
        return ""


Rule = Callable[[str, re.Match[str]], str]


def call(*parts: str) -> str:
    return f"{CALL}{' '.join(parts)}{END}"


def rewrite(region: str, changed: str) -> str:
    return NO if changed == region else changed + END


def parsed(region: str) -> ast.Module:
    return ast.parse(f"if 1:\n{region}" if region[:1] == " " else region)


def functions(region: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(parsed(region)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


def rename(region: str, match: re.Match[str]) -> str:
    old, new = match[1], match[2]
    for function in functions(region):
        if old in {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}:
            return call("rename_parameter", function.name, old, new)
    stored = {n.id for n in ast.walk(parsed(region)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if old in stored and functions(region):
        return rewrite(region, re.sub(rf"(?<![\w.]){re.escape(old)}\b(?!\s*=[^=].*[,)])", new, region))
    return call("rename", old, new) if re.search(rf"\b{re.escape(old)}\b", region) else NO


def substitute(pattern: str, replacement: str) -> Rule:
    """A rule that replaces a pattern in the region; {1} and {2} in both stand for the instruction's groups."""

    def rule(region: str, match: re.Match[str]) -> str:
        groups = [re.escape(group or "") for group in match.groups()]
        plain = [(group or "").replace("\\", "\\\\") for group in match.groups()]
        wanted, result = pattern, replacement
        for number, (escaped, raw) in enumerate(zip(groups, plain, strict=True), 1):
            wanted, result = wanted.replace(f"{{{number}}}", escaped), result.replace(f"{{{number}}}", raw)
        return rewrite(region, re.sub(wanted, result, region, flags=re.MULTILINE))

    return rule


def drop_docstring(region: str, match: re.Match[str]) -> str:
    return rewrite(region, re.sub(r"(?ms)(:\n)[ ]*[rR]?\"\"\".*?\"\"\"\n+", r"\1", region, count=1))


def sort_imports(region: str, match: re.Match[str]) -> str:
    lines = region.split("\n")
    imports = [i for i, line in enumerate(lines) if re.match(r"(import|from) ", line)]
    if len(imports) < 2:
        return call("sort_imports")
    first, last = imports[0], imports[-1] + 1
    ordered = sorted(lines[first:last], key=lambda line: (line.startswith("from"), line.split()[1:2]))
    return rewrite(region, "\n".join([*lines[:first], *ordered, *lines[last:]]))


def add_import(region: str, match: re.Match[str]) -> str:
    line = f"from {match[2]} import {match[1]}" if match.lastindex == 2 else f"import {match[1]}"
    return call("add_import", *line.split())


def remove_import(region: str, match: re.Match[str]) -> str:
    changed = re.sub(rf"(?m)^(import|from \S+ import) {re.escape(match[1])}\n", "", region)
    return changed + END if changed != region else call("remove_import", match[1])


RULES: list[tuple[str, Rule]] = [
    (r"rename (?:the )?(?:\w+ )??(\w+) (?:to|->|=>|as|into) (\w+)", rename),
    (r"(?:use|compare).*\bis\b.*None|== None|None.*\bis\b", substitute(r"([\w\])])\s*==\s*None\b", r"\1 is None")),
    (r"super", substitute(r"super\(\w+, \w+\)", "super()")),
    (r"\.?keys\(\)", substitute(r"\.keys\(\)", "")),
    (r"(?:remove|delete|drop|strip).*docstring", drop_docstring),
    (r"(?:remove|delete|drop|strip).*print", substitute(r"^[ ]*print\(.*\)\n", "")),
    (r"(?:remove|delete|drop|strip).*comments?", substitute(r"^[ ]*#.*\n|[ ]+#[^\"'\n]*$", "")),
    (r"unused imports", lambda region, match: call("remove_unused_imports")),
    (r"sort.*imports|isort|order.*imports", sort_imports),
    (r"import (\w+) from ([\w.]+)", add_import),
    (r"(?:remove|delete|drop).*import(?: of)? (\w+)", remove_import),
    (r"^(?:add )?(?:the )?import (\w+)$", add_import),
    (r"async", substitute(r"^([ ]*)def ", r"\1async def ")),
    (r"await (?:the call to )?([\w.]+)", substitute(r"(?<!await ){1}\(", r"await {1}(")),
    (r"return (\S+) instead of (\S+)", substitute(r"return {2}$", "return {1}")),
    (r"raise (\w+) (?:instead of|rather than) (\w+)", substitute(r"raise {2}\b", "raise {1}")),
    (r"default (?:value )?of (\w+) to (\S+)", substitute(r"(\b{1}(?:: [^=,]+)?\s*=\s*)[^,)]+", r"\g<1>{2}")),
    (r"(?:set|change) ([\w.]+) to (\S+)$", substitute(r"^(\s*{1}(?:: [^=]+)? = ).*$", r"\g<1>{2}")),
    (r"(?:catch|except) (?:only )?([\w.]+)", substitute(r"except(?: Exception)?:", "except {1}:")),
    (r"double quotes", substitute(r"'([^'\"\\\n]*)'", r'"\1"')),
    (r"single quotes", substitute(r'"([^\'"\\\n]*)"', r"'\1'")),
    (r"truthiness|len\(\)", substitute(r"len\(([\w.]+)\) == 0", r"not \1")),
    (r"\+=|augmented", substitute(r"^(\s*)([\w.]+) = \2 ([-+*/]) ", r"\1\2 \3= ")),
    (r"remove.*type (?:hints|annotations)", substitute(r"\) -> [^:]+:", "):")),
    (r"return type (?:should be |as |is )?(\S+)$|-> (\S+)$", substitute(r"\):$", ") -> {1}{2}:")),
    (r"(?:add|put).*@(\S+)|decorate .* with (\S+)", substitute(r"^([ ]*)(def |async def )", r"\1@{1}{2}\n\1\2")),
    (r"remove (?:the )?parameter (\w+) from (\w+)", lambda region, match: call("remove_parameter", match[2], match[1])),
    (r"keyword arg\w* .*calling (\w+)", lambda region, match: call("use_keywords", match[1])),
    (r"extract (\S+) (?:into|to) a constant (\w+)", lambda region, match: call("extract_constant", match[1], match[2])),
]
