"""Turn strings that are formatted or concatenated into f-strings."""

from __future__ import annotations

import ast
import re

from fulgur.edit.refactor.errors import RefactorError
from fulgur.edit.refactor.local.piece import Edits, Piece
from fulgur.edit.refactor.source import Edit, dotted

# A string on one line: prefix, quote, text. The only escapes are `\n` and `\t`, unless it is raw.
PLAIN = re.compile(r"""(r?)("|')((?:[^\\"'{}]|\\[nt]|(?!\2)["'])*)\2""", re.IGNORECASE)
RAW = re.compile(r"""(r)("|')((?:[^"'\n]|(?!\2)["'])*)\2""", re.IGNORECASE)
PIECE = re.compile(r"""()("|')((?:(?!\2)[^\\\n]|\\[nt])*)\2""")
FIELD = re.compile(r"\{(\w*)(![rsa])?(:[^{}]*)?\}")
PERCENT = re.compile(r"%(?:(%)|([-+0 #]*\d*(?:\.\d+)?)([srfx]))")


def use_fstring(src: Piece, args: tuple[str, ...]) -> Edits:
    """Convert every such string of the region, or none: half of them would not be what was asked for."""
    edits: list[Edit] = []
    left: list[ast.expr] = []
    for node in src.of(ast.Call):
        if text := from_format(src, node):
            edits.append(Edit(*src.span(node), text))
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "format" and is_text(node.func.value):
            left.append(node)
    for operation in src.of(ast.BinOp):
        text = None
        if isinstance(operation.op, ast.Mod):
            text = from_percent(src, operation)
            if text is None and is_text(operation.left):
                left.append(operation)
        elif isinstance(operation.op, ast.Add) and not isinstance(src.parents.get(operation), ast.BinOp):
            text = from_sum(src, operation)
        if text:
            edits.append(Edit(*src.span(operation), text))
    inner = [e for e in edits if any(o is not e and o.start <= e.start and e.end <= o.end for o in edits)]
    outer = [edit for edit in edits if edit not in inner]
    for other in left:
        if not any(edit.start <= src.start(other) and src.end(other) <= edit.end for edit in outer):
            raise RefactorError(f"`{src.segment(other).splitlines()[0][:60]}` cannot be an f-string exactly")
    return outer


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def string_of(src: Piece, node: ast.expr) -> re.Match[str] | None:
    """The prefix, quote and text of a plain string on one line."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or not src.one_line(node):
        return None
    text = src.segment(node)
    if found := PLAIN.fullmatch(text.replace("{", " ").replace("}", " ")):
        return re.compile(r"(r?)(\"|')(.*)\2", re.IGNORECASE).fullmatch(text) if found else None
    return RAW.fullmatch(text)


def field(src: Piece, node: ast.expr, quote: str) -> str | None:
    """An expression for use in braces, with its quotes swapped if necessary; None if it does not fit."""
    text = src.segment(node)
    plain = src.one_line(node) and not isinstance(node, (ast.Starred, ast.Lambda, ast.Dict, ast.Set))
    if quote in text:
        other = "'" if quote == '"' else '"'
        text = text.replace(quote, other) if other not in text else text
    if isinstance(node, ast.IfExp) or ":" in text:
        text = f"({text})"
    return text if plain and not re.search(r"[\\{}#!]", text) and quote not in text else None


def filled(src: Piece, start: str, literals: list[str], values: list[ast.expr], ends: list[str]) -> str | None:
    """`f"…{value}…"`; `start` is the prefix and the quote, `ends` what follows each value inside its braces."""
    quote = start[-1]
    fields = [field(src, value, quote) for value in values]
    if len(literals) != len(values) + 1 or not values or None in fields:
        return None
    parts = [literals[0]]
    for name, end, literal in zip(fields, ends, literals[1:], strict=True):
        parts.append(f"{{{name}{end}}}{literal}")
    prefix = f"{start[:-1]}f" if len(start) > 1 else "f"
    return f"{prefix}{quote}{''.join(parts)}{quote}"


def from_format(src: Piece, node: ast.Call) -> str | None:
    """`"a {} {b!r}".format(x, b=y)`"""
    function = node.func
    if not isinstance(function, ast.Attribute) or function.attr != "format":
        return None
    if any(isinstance(a, ast.Starred) for a in node.args):
        return None
    match = string_of(src, function.value)
    if match is None:
        return from_pieces(src, node, function.value)
    text = match[3]
    found = formatted(text, node, 0)
    if found is None or not all_used(found[0], node):
        return None
    return filled(src, match[1] + match[2], re.split(r"\{[^{}]*\}", text), found[0], found[1])


def formatted(text: str, node: ast.Call, number: int) -> tuple[list[ast.expr], list[str]] | None:
    """The values of the fields of a text and the suffix of each; `number` automatic fields come before it."""
    if re.search(r"\{\{|\}\}", text) or len(FIELD.findall(text)) != text.count("{"):
        return None
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    values: list[ast.expr] = []
    ends: list[str] = []
    for name, conversion, spec in FIELD.findall(text):
        if name == "" or name.isdigit():
            at = number if name == "" else int(name)
            number += 1
            if at >= len(node.args):
                return None
            values.append(node.args[at])
        elif name in named:
            values.append(named[name])
        else:
            return None
        ends.append(f"{conversion}{spec}")
    return values, ends


def all_used(values: list[ast.expr], node: ast.Call) -> bool:
    """Whether every argument is used, and there is no `**more`."""
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return {id(value) for value in values} == {id(value) for value in given}


def from_pieces(src: Piece, node: ast.Call, value: ast.expr) -> str | None:
    """`("a {} " "b {}").format(x, y)`: adjacent strings, mostly one per line."""
    if not is_text(value):
        return None
    text, values = src.segment(value), list[ast.expr]()
    found = list(PIECE.finditer(text))
    if not found or PIECE.sub("", text).strip():
        return None
    parts, at, number = [], 0, 0
    for piece in found:
        parts.append(text[at : piece.start()])
        at = piece.end()
        fields = formatted(piece[3], node, number)
        if fields is None or re.search(r"\\[^nt]", piece[3]):
            return None
        new = filled(src, piece[2], re.split(r"\{[^{}]*\}", piece[3]), *fields) if fields[0] else piece[0]
        if new is None:
            return None
        parts.append(new)
        values += fields[0]
        number += sum(not name or name.isdigit() for name, _, _ in FIELD.findall(piece[3]))
    before, after = src.text[src.start(node) : src.start(value)], src.text[src.end(value) : src.end(node)]
    closing = after[: after.index(".format")] if ".format" in after else ""
    if not all_used(values, node) or re.search(r"[^\s()]", before + closing):
        return None
    return f"{before}{''.join(parts)}{closing}" if before.strip() else "".join(parts)


def from_percent(src: Piece, node: ast.BinOp) -> str | None:
    """`"a %s %r" % (b, c)`; not `%d`, which takes a float too."""
    match = string_of(src, node.left)
    if match is None:
        return None
    text = match[3].replace("{", "{{").replace("}", "}}")
    found = list(PERCENT.finditer(text))
    if "%" in PERCENT.sub("", text) or any(part[2] and "-" in part[2] for part in found):
        return None
    values = list(node.right.elts) if isinstance(node.right, ast.Tuple) else [node.right]
    literals, ends, at = [""], [], 0
    for part in found:
        literals[-1] += text[at : part.start()]
        at = part.end()
        if part[1]:
            literals[-1] += "%"
            continue
        spec = f"{part[2]}{part[3] if part[3] in 'fx' else ''}"
        if part[3] in "sr" and part[2]:
            return None
        ends.append(f"{'!r' if part[3] == 'r' else ''}{f':{spec}' if spec else ''}")
        literals.append("")
    literals[-1] += text[at:]
    return filled(src, match[1] + match[2], literals, values, ends)


def from_sum(src: Piece, node: ast.BinOp) -> str | None:
    """`"a" + str(b) + c`: plain strings, calls of `str`, and names, which must be strings to be added to one."""
    parts: list[ast.expr] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add):
        parts.insert(0, left.right)
        left = left.left
    parts.insert(0, left)
    literals, values, quote = [""], [], ""
    for part in parts:
        match = string_of(src, part)
        if match is not None and not match[1] and "{" not in match[3] and "}" not in match[3]:
            if quote not in ("", match[2]):
                return None
            quote = match[2]
            literals[-1] += match[3]
        elif isinstance(part, ast.Call) and dotted(part.func) == "str" and len(part.args) == 1 and not part.keywords:
            values.append(part.args[0])
            literals.append("")
        elif isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)):
            values.append(part)
            literals.append("")
        else:
            return None
    return filled(src, quote, literals, values, [""] * len(values)) if quote else None
