"""Operations on calls and literals: keyword arguments, list and dictionary items, enum members, dataclass fields."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

from fulgur.edit.refactor.source import Edit, Source, dotted
from lab.train.edits import values
from lab.train.edits.example import Change, operation, shuffled


def without_last(src: Source, last_start: int, last_end: int, first: bool) -> Edit | None:
    """Remove the last element of a bracketed list: its line, or the text from the comma before it."""
    line = src.line_of(last_start)
    line_start, line_end = src.line_start(line), src.line_end(line)
    alone = not src.text[line_start:last_start].strip() and src.text[last_end:line_end].strip() == ","
    if alone:
        return Edit(line_start, line_end, "")
    if src.line_of(last_end) != line or first:
        return None
    comma = src.text.rfind(",", line_start, last_start)
    if comma < 0 or src.text[comma + 1 : last_start].strip() or src.text[last_end : last_end + 1] not in ")]}":
        return None
    return Edit(comma, last_end, "")


@operation("inverse")
def add_keyword_argument(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Call), rng):
        name = dotted(node.func)
        if name is None or not node.keywords or node.keywords[-1].arg is None:
            continue
        last = node.keywords[-1]
        if not src.one_line(last) or len(src.segment(last.value)) > 40:
            continue
        edit = without_last(src, src.start(last), src.end(last), len(node.keywords) + len(node.args) == 1)
        if edit is None:
            continue
        slots = {"call": name, "param": last.arg or "", "value": src.segment(last.value)}
        yield Change([edit], slots, inverse=True, unique=f"{name}(", cover=src.span(node))


@operation("forward", heldout=True)
def remove_keyword_argument(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Call), rng):
        name = dotted(node.func)
        if (
            name is None
            or not node.keywords
            or node.keywords[-1].arg is None
            or len(node.keywords) + len(node.args) < 2
        ):
            continue
        last = node.keywords[-1]
        edit = without_last(src, src.start(last), src.end(last), False) if src.one_line(last) else None
        if edit is not None:
            slots = {"call": name, "param": last.arg or ""}
            yield Change([edit], slots, unique=f"{name}(", cover=src.span(node))


@operation("forward")
def change_argument(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.Call), rng):
        name = dotted(node.func)
        literal = [k for k in node.keywords if k.arg and isinstance(k.value, ast.Constant) and src.one_line(k)]
        literal = [k for k in literal if len(src.segment(k.value)) <= 30]
        if name is None or not literal:
            continue
        chosen = rng.choice(literal)
        if not isinstance(chosen.value, ast.Constant) or isinstance(chosen.value.value, bytes):
            continue
        new = values.other_value(chosen.value, rng)
        slots = {"call": name, "param": chosen.arg or "", "old": src.segment(chosen.value), "new": new}
        unique = f"{chosen.arg}={slots['old']}"
        yield Change([Edit(*src.span(chosen.value), new)], slots, unique=unique, cover=src.span(node))


def named_literals(src: Source, kinds: tuple[type[ast.AST], ...], rng: random.Random) -> Iterator[tuple[str, ast.AST]]:
    """Yield literals assigned to a plain name: `NAME = [...]`."""
    for statement in shuffled([*src.of(ast.Assign), *src.of(ast.AnnAssign)], rng):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        name = dotted(target)
        if name and isinstance(statement.value, kinds) and src.alone_on_lines(statement):
            yield name, statement.value


@operation("inverse")
def add_list_item(src: Source, rng: random.Random) -> Iterator[Change]:
    for name, node in named_literals(src, (ast.List, ast.Tuple, ast.Set), rng):
        items = node.elts  # type: ignore[attr-defined]
        if not 2 <= len(items) <= 50 or not isinstance(items[-1], (ast.Constant, ast.Name, ast.Attribute)):
            continue
        if src.text[src.start(node)] not in "[({" or (len(items) == 2 and isinstance(node, ast.Tuple)):
            continue
        item = src.segment(items[-1])
        edit = without_last(src, *src.span(items[-1]), False) if src.one_line(items[-1]) else None
        if edit and len(item) <= 50:
            slots = {"name": name, "item": item}
            yield Change([edit], slots, inverse=True, unique=f"{name} =", cover=src.span(node))


@operation("forward", heldout=True)
def remove_list_item(src: Source, rng: random.Random) -> Iterator[Change]:
    for name, node in named_literals(src, (ast.List, ast.Tuple, ast.Set), rng):
        items = node.elts  # type: ignore[attr-defined]
        if not 3 <= len(items) <= 50 or src.text[src.start(node)] not in "[({":
            continue
        index = rng.randrange(len(items) - 1)
        item, follower = items[index], items[index + 1]
        if not isinstance(item, (ast.Constant, ast.Name, ast.Attribute)) or "#" in src.segment(node):
            continue
        end = src.start(follower)
        if not re.fullmatch(r",\s*", src.text[src.end(item) : end]):
            continue
        slots = {"name": name, "item": src.segment(item)}
        yield Change([Edit(src.start(item), end, "")], slots, unique=f"{name} =", cover=src.span(node))


@operation("inverse")
def add_dict_entry(src: Source, rng: random.Random) -> Iterator[Change]:
    for name, node in named_literals(src, (ast.Dict,), rng):
        assert isinstance(node, ast.Dict)
        if not 2 <= len(node.keys) <= 40 or node.keys[-1] is None:
            continue
        key, value = node.keys[-1], node.values[-1]
        if key.lineno != value.end_lineno or len(src.segment(value)) > 50 or len(src.segment(key)) > 40:
            continue
        edit = without_last(src, src.start(key), src.end(value), False)
        if edit:
            slots = {"name": name, "key": src.segment(key), "value": src.segment(value)}
            yield Change([edit], slots, inverse=True, unique=f"{name} =", cover=src.span(node))


@operation("inverse", limit=8)
def add_enum_member(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.ClassDef), rng):
        bases = [(dotted(base) or "").split(".")[-1] for base in node.bases]
        if not {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"} & set(bases):
            continue
        members = [s for s in node.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)]
        if len(members) < 2 or not src.one_line(members[-1]) or src.trailing_comment(members[-1]):
            continue
        last = members[-1]
        target = last.targets[0]
        assert isinstance(target, ast.Name)
        slots = {"name": node.name, "member": target.id, "value": src.segment(last.value)}
        if len(slots["value"]) > 40:
            continue
        head = (src.whole_lines(node)[0], src.whole_lines(last)[1])
        yield Change([Edit(*src.whole_lines(last), "")], slots, inverse=True, cover=head)


@operation("inverse", limit=8)
def add_dataclass_field(src: Source, rng: random.Random) -> Iterator[Change]:
    for node in shuffled(src.of(ast.ClassDef), rng):
        decorators = [dotted(d.func if isinstance(d, ast.Call) else d) or "" for d in node.decorator_list]
        bases = [(dotted(base) or "").split(".")[-1] for base in node.bases]
        if not any(d.split(".")[-1] in ("dataclass", "define") for d in decorators) and not {
            "BaseModel",
            "NamedTuple",
            "TypedDict",
        } & set(bases):
            continue
        fields = [s for s in node.body if isinstance(s, ast.AnnAssign)]
        if len(fields) < 2 or not src.one_line(fields[-1]) or src.trailing_comment(fields[-1]):
            continue
        last = fields[-1]
        position = node.body.index(last)
        if position + 1 < len(node.body) and src.docstring(ast.Module([node.body[position + 1]], [])):
            continue
        slots = {"name": node.name, "field": src.segment(last.target), "type": src.segment(last.annotation)}
        variant = ""
        if last.value is not None:
            slots["value"] = src.segment(last.value)
            variant = "default"
        head = (src.whole_lines(node)[0], src.whole_lines(last)[1])
        yield Change([Edit(*src.whole_lines(last), "")], slots, inverse=True, variant=variant, cover=head)
