"""Where an edit goes: FILE, FILE:SYMBOL, FILE:LINE or FILE:A-B becomes a bounded region of whole lines."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from fulgur.edit.refactor.source import FUNCTIONS, Edit, Source, Unusable, apply_edits
from fulgur.edit.verbs import without_verb
from fulgur.errors import FulgurError, UsageError
from fulgur.workspace.words import code_words

MAX_LINES = 60
MAX_CHARS = 2400
ABOVE_CHARS = 1200
BELOW_CHARS = 500
_LINES = re.compile(r"(\d+)(?:-(\d+))?")
_DECLARED = (
    r"\b(?:function\*?|class|def|fn|func|const|let|var|struct|interface|type|enum|trait|impl|module|namespace)\s+"
)
SYMBOLS = (*FUNCTIONS, ast.ClassDef)


@dataclass(frozen=True)
class Target:
    """What was named on the command line."""

    path: Path
    symbol: str | None = None
    lines: tuple[int, int] | None = None


@dataclass(frozen=True)
class Region:
    """Whole lines of a file, as offsets into its text (line feeds only), with bounded context around them.

    `named`: the user named exactly this part, as a symbol or by its lines.
    """

    start: int
    end: int
    above: str
    text: str
    below: str
    first_line: int
    last_line: int
    named: bool = False


def parse_target(text: str, base: Path = Path()) -> Target:
    """FILE[:SYMBOL|:LINE|:A-B] in a folder; a colon that belongs to an existing file's name is part of the name."""
    if (base / text).exists() or ":" not in text:
        return Target(base / text)
    name, _, rest = text.rpartition(":")
    if match := _LINES.fullmatch(rest):
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last:
            raise UsageError(f"{rest}: line numbers start at 1, and the first may not be above the last")
        return Target(base / name, None, (first, last))
    if not re.fullmatch(r"[^\W\d][\w.]*", rest):
        raise UsageError(f"{rest!r} is neither a symbol nor lines", hint="Write FILE, FILE:SYMBOL or FILE:FIRST-LAST.")
    return Target(base / name, rest)


def locate_region(text: str, target: Target, instruction: str = "", *, limit: bool = True) -> Region:
    """The region a target means in this text; raises when it is too large or unclear, and says what to name instead.

    `limit` False: it may be as large as the file, for edits that need no model."""
    python = target.path.suffix in (".py", ".pyi")
    src: Source | None = None
    if python:
        try:
            src = Source(text)
        except Unusable:
            src = None
    line_count = text.count("\n") + (not text.endswith("\n"))
    if (lines := target.lines or named_lines(instruction)) is not None:
        first, last = lines
        if first > line_count:
            raise UsageError(f"{target.path} has {line_count} lines: there is no line {first}")
        if first == last and src is not None:
            first, last = enclosing(src, first)
        return bounded(text, first, min(last, line_count), target, limit=limit, named=(first, last) == lines)
    if target.symbol is not None:
        first, last = python_symbol(src, target) if src is not None else other_symbol(text, target)
        if src is not None:
            first, last = inside(src, first, last, instruction)
        return bounded(text, first, last, target, limit=limit, named=True)
    found = mentioned(src, instruction) if src is not None else None
    if found is None and (not limit or (line_count <= MAX_LINES and len(text) <= MAX_CHARS)):
        return bounded(text, 1, line_count, target, limit=limit)
    if found is None:
        raise FulgurError(
            f"{target.path} has {line_count} lines: which part?{_absent(text, instruction)}",
            hint=f"Name it: {target.path}:SYMBOL or {target.path}:FIRST-LAST (at most {MAX_LINES} lines).",
        )
    return bounded(text, *found, target)


def inside(src: Source, first: int, last: int, instruction: str) -> tuple[int, int]:
    """Lines of the one inner function that an instruction names ("… in _walk", "… to the constructor"); else all."""
    within = [
        node
        for node in symbols(src)
        if isinstance(node, FUNCTIONS) and first <= src.first_line(node) and lines_of(src, node) != (first, last)
        and lines_of(src, node)[1] <= last
    ]  # fmt: skip
    place = rf"(?:\b(?:in|inside|within|of|for)|^(?:add|give|apply|put)\b.* to) {_THE}{{}}(?:\(\))?(?=[\s,.:;]|$)"
    named = [
        node
        for node in within
        if re.search(place.format(rf"`?(?:\w+\.)?{re.escape(node.name)}`?"), instruction)
        or (node.name == "__init__" and re.search(place.format(r"(?:constructor|initiali[sz]er)"), instruction))
    ]
    return lines_of(src, named[0]) if len(named) == 1 else (first, last)


_THE = r"(?:the |its )?(?:function |method |helper |inner function |nested function )?"


def without_docstring(region: Region) -> str:
    """A region that is too long, with each docstring cut to its first line; empty when that is still too long."""
    src = Source(f"if 1:\n{region.text}" if region.text[:1] in (" ", "\t") else region.text)
    edits = []
    for node in symbols(src):
        doc = src.docstring(node)
        if doc is None or src.one_line(doc) or not isinstance(doc.value, ast.Constant):
            continue
        lines = str(doc.value.value).strip().split("\n")
        if "\\" not in lines[0] and '"' not in lines[0]:
            edits.append(Edit(*src.span(doc), f'"""{lines[0]}"""'))
    text = apply_edits(src.text, edits)[len(src.text) - len(region.text) :]
    return text if text.count("\n") <= MAX_LINES and len(text) <= MAX_CHARS else ""


def named_lines(instruction: str) -> tuple[int, int] | None:
    """The lines that an instruction itself names: "extract lines 10-14 into load"."""
    match = re.search(r"\blines? (\d+) ?(?:-|–|to|through) ?(\d+)\b", instruction)
    return (int(match[1]), int(match[2])) if match and 1 <= int(match[1]) <= int(match[2]) else None


def _absent(text: str, instruction: str) -> str:
    """A sentence on the first name of an instruction that the file lacks, with the nearest name that it has."""
    known = set(re.findall(r"[^\W\d]\w*", text))
    missing = next((word for word in code_words(instruction) if word.isidentifier() and word not in known), None)
    if missing is None:
        return ""
    close = difflib.get_close_matches(missing, sorted(known), n=1)
    return f" There is no {missing} in it{f' (nearest: {close[0]})' if close else ''}."


def bounded(text: str, first: int, last: int, target: Target, *, limit: bool = True, named: bool = False) -> Region:
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    start = starts[first - 1]
    end = starts[last] if last < len(starts) else len(text)
    if limit and (last - first >= MAX_LINES or end - start > MAX_CHARS):
        raise FulgurError(
            f"lines {first}-{last} of {target.path} are too many for one edit: {last - first + 1} lines, "
            f"{end - start:,} characters (at most {MAX_LINES} and {MAX_CHARS:,})",
            hint=f"Name a smaller part, for example {target.path}:{first}-{first + 20}.",
        )
    above, below = context(text, start, end)
    return Region(start, end, above, text[start:end], below, first, last, named)


def context(text: str, start: int, end: int) -> tuple[str, str]:
    """Whole lines before and after a region, within fixed sizes."""
    begin = max(0, start - ABOVE_CHARS)
    if begin > 0:
        begin = text.find("\n", begin - 1, start) + 1 or start
    stop = min(len(text), end + BELOW_CHARS)
    if stop < len(text):
        stop = max(text.rfind("\n", end, stop) + 1, end)
    return text[begin:start], text[end:stop]


def lines_of(src: Source, node: ast.AST) -> tuple[int, int]:
    return src.first_line(node), getattr(node, "end_lineno", 0) or 0


def fits(src: Source, node: ast.AST) -> bool:
    first, last = lines_of(src, node)
    return last - first < MAX_LINES and src.line_end(last) - src.line_start(first) <= MAX_CHARS


def enclosing(src: Source, line: int) -> tuple[int, int]:
    """The innermost function around a line that fits, else the statement, else the line."""
    best: ast.AST | None = None
    for node in ast.walk(src.tree):
        if isinstance(node, ast.stmt) and lines_of(src, node)[0] <= line <= lines_of(src, node)[1] and fits(src, node):
            better = best is None or (isinstance(node, FUNCTIONS), lines_of(src, node)[0]) >= (
                isinstance(best, FUNCTIONS),
                lines_of(src, best)[0],
            )
            best = node if better else best
    return lines_of(src, best) if best is not None else (line, line)


def python_symbol(src: Source, target: Target) -> tuple[int, int]:
    """Lines of `name`, `Class.method` or a module-level constant."""
    wanted = (target.symbol or "").split(".")
    found = [node for node in symbols(src) if qualified(src, node)[-len(wanted) :] == wanted]
    if not found and len(wanted) == 1:
        found = [s for s in src.tree.body if wanted[0] in assigned(s)]
    if not found:
        known = [".".join(qualified(src, node)) for node in symbols(src)]
        close = difflib.get_close_matches(target.symbol or "", known, n=3)
        listed = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
        hint = f"Did you mean {' or '.join(close)}?" if close else f"It has: {listed}." if known else None
        raise UsageError(f"{target.path} has no {target.symbol}", hint=hint)
    exact = [node for node in found if isinstance(src.parents.get(node), ast.Module)] or found
    names = {".".join(qualified(src, node)) for node in exact}
    if len(exact) > 1 and len(names) == 1 and _one_after_another(src, exact):
        return lines_of(src, exact[0])[0], lines_of(src, exact[-1])[1]
    if len(exact) > 1:
        listed = ", ".join(f"{'.'.join(qualified(src, node))} (line {lines_of(src, node)[0]})" for node in exact)
        first, last = lines_of(src, exact[0])
        hint = "Name one of them in full." if len(names) > 1 else f"Name its lines: {target.path}:{first}-{last}."
        raise UsageError(f"{target.path} has several {target.symbol}: {listed}", hint=hint)
    return lines_of(src, exact[0])


def _one_after_another(src: Source, nodes: list[ast.AST]) -> bool:
    """Whether definitions of a name belong together: overloads and their implementation, a property and its setter."""
    block = src.block_of(nodes[0]) if isinstance(nodes[0], ast.stmt) else []
    at = [block.index(node) for node in nodes if isinstance(node, ast.stmt) and node in block]
    heads = [ast.unparse(d) for node in nodes for d in getattr(node, "decorator_list", [])]
    marks = ("overload", "setter", "getter", "deleter", "register")
    together = at == list(range(at[0], at[0] + len(nodes))) if at else False
    return together and any(head.split("(")[0].endswith(marks) for head in heads)


def symbols(src: Source) -> list[ast.AST]:
    """Functions and classes in the order of the file."""
    found = [(node.lineno, node.col_offset, node) for node in ast.walk(src.tree) if isinstance(node, SYMBOLS)]
    return [node for _, _, node in sorted(found, key=lambda entry: entry[:2])]


def qualified(src: Source, node: ast.AST) -> list[str]:
    """`["Class", "method"]`"""
    owners = [ancestor.name for ancestor in src.ancestors(node) if isinstance(ancestor, SYMBOLS)]
    name = getattr(node, "name", "")
    return [*reversed(owners), *([name] if name else sorted(assigned(node))[:1])]


def assigned(node: ast.AST) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def mentioned(src: Source, instruction: str) -> tuple[int, int] | None:
    """The part of a long file an instruction is about: a symbol it names, the imports, or the one user of a name."""
    said, instruction = instruction, without_verb(instruction)
    words = set(re.findall(r"[^\W\d]\w*", instruction))
    words |= {"__version__"} if "version" in words else set()
    named = [node for node in symbols(src) if getattr(node, "name", "") in words and fits(src, node)]
    inner = [n for n in named if not any(o is not n and n in ast.walk(o) for o in named)] or named
    if len(inner) == 1:
        return lines_of(src, inner[0])
    constants = [s for s in src.tree.body if assigned(s) & words and fits(src, s)]
    if len(constants) == 1 and not inner:
        return lines_of(src, constants[0])
    imports = [s for s in src.tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    if imports and re.search(r"\b(?:import(?:s|ed)?|isort)\b", said) and not inner:
        first, last = lines_of(src, imports[0])[0], lines_of(src, imports[-1])[1]
        return (first, last) if last - first < MAX_LINES else None
    code = set(code_words(instruction))  # a plain word may be English
    users = [
        node
        for node in symbols(src)
        if isinstance(node, FUNCTIONS)
        and fits(src, node)
        and code & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    ]
    return lines_of(src, users[0]) if len(users) == 1 and not inner else None


def other_symbol(text: str, target: Target) -> tuple[int, int]:
    """A symbol of another language, or of broken Python: found by the grammar, else by the line that declares it."""
    from fulgur.workspace.symbols import symbols_in

    wanted = target.symbol or ""
    for symbol in symbols_in(text.encode(), target.path.suffix[1:]):
        if wanted in (symbol.name, symbol.qualified):
            return symbol.line, symbol.last
    name = re.escape(wanted.split(".")[-1])
    lines = text.split("\n")
    for pattern in (
        rf"{_DECLARED}{name}\b",
        rf"^\s*(?:[\w<>\[\]]+\s+)*{name}\s*\([^;]*$",
        rf"^\s*[\"']?{name}[\"']?\s*[:=]",
    ):
        for index, line in enumerate(lines):
            if re.search(pattern, line):
                return index + 1, block_end(lines, index) + 1
    raise UsageError(f"{target.path} has no {target.symbol}", hint=f"Name lines instead: {target.path}:FIRST-LAST.")


def block_end(lines: list[str], first: int) -> int:
    """The last line of the block that begins here: deeper-indented lines, and lines inside open brackets."""
    margin = len(lines[first]) - len(lines[first].lstrip())
    last, depth = first, 0
    for index in range(first, len(lines)):
        line = re.sub(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|//.*", "", lines[index])
        if index > first and depth <= 0 and line.strip() and len(line) - len(line.lstrip()) <= margin:
            break
        if line.strip():
            last = index
        depth += sum(line.count(letter) for letter in "([{") - sum(line.count(letter) for letter in ")]}")
        if (
            lines[index].rstrip().endswith(":")
        ):  # the header is over; a bracket left open by mistake must not swallow the file
            depth = 0
    return last
