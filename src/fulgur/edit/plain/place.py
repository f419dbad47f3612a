"""The region that an instruction is about, and helpers that parse its words: code, types, texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fulgur.edit.refactor.local.exact import places_of
from fulgur.edit.refactor.local.functions import defaults, parameters
from fulgur.edit.refactor.source import FUNCTIONS, Function, Unusable, parse_region
from fulgur.text.edit_format import Call


@dataclass(frozen=True)
class Place:
    """The region an instruction is about, and the whole file. `named`: the user named exactly this region."""

    region: str
    file: str
    named: bool = False

    @property
    def part(self) -> bool:
        """Whether the region is a part of the file, so that "it" may mean that part."""
        return self.named or self.region != self.file

    @property
    def tree(self) -> ast.Module | None:
        try:
            return parse_region(self.region)
        except (Unusable, RecursionError):
            return None

    @property
    def function(self) -> Function | None:
        """The only outermost function of the region."""
        tree = self.tree
        body = tree.body if tree is not None else []
        if self.region[:1] in (" ", "\t") and body:
            body = body[0].body  # type: ignore[attr-defined]
        found = [node for node in body if isinstance(node, FUNCTIONS)]
        return found[0] if len(found) == len(body) == 1 else None

    @property
    def symbol(self) -> Function | ast.ClassDef | None:
        """The only outermost function or class of the region; None if there are several."""
        tree = self.tree
        found = list(_outermost(tree)) if tree is not None else []
        return found[0] if len({node.name for node in found}) == 1 else None

    @property
    def named_symbol(self) -> Function | ast.ClassDef | None:
        """The function or class that the user named; None if they named a file or other lines."""
        begins = re.match(r"\s*(?:@|(?:async )?def |class )", self.region)
        return self.symbol if self.named and begins else None

    def parameters(self) -> list[str]:
        return [arg.arg for arg in parameters(self.function)] if self.function else []

    def has(self, text: str) -> bool:
        return bool(places_of(self.region, text))


def _outermost(node: ast.AST) -> Iterator[Function | ast.ClassDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield child
        else:
            yield from _outermost(child)


Rule = Callable[[re.Match[str], Place], Call | None]
Q = r"[`'\"]?"
N = rf"{Q}([A-Za-z_]\w*){Q}"  # a name, in quotes or not


def unquoted(text: str) -> str:
    """A text without the quotes or backticks around it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "`'\"" else text


def payload(text: str) -> str | None:
    """A literal text without its quotes; None if words follow the quotes."""
    text = text.strip()
    if text.startswith('"""') and text.endswith('"""') and len(text) > 6:
        return text[3:-3]
    if text[:1] not in "`'\"":
        return text
    inner = unquoted(text)
    apart = re.search(rf"(?<!\w){text[:1]}|{text[:1]}(?!\w)", inner)  # a quote inside a word ("don't") does not count
    return inner if inner != text and not apart else None


def code(text: str) -> str | None:
    """The text of an expression without backticks; None for anything else."""
    text = text.strip().strip("`")
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return None
    return text


def annotation(text: str) -> str | None:
    """A type annotation; a lower-case word must be a known type name."""
    found = code(text)
    if found is None or not re.match(r"[A-Za-z_\"']", found):
        return None
    node = ast.parse(found, mode="eval").body
    kinds = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.Constant)
    english = re.fullmatch(r"[a-z]+", found) and found not in _TYPES.split()
    english = english or found in ("Optional", "Union")  # incomplete without a type argument
    return found if isinstance(node, kinds) and not english else None


_TYPES = "int str float bool bytes bytearray complex list dict set frozenset tuple object type"


def always(name: str, *args: str) -> Rule:
    """A rule that makes a fixed call whenever its pattern matches."""
    return lambda match, place: Call(name, args)


def filled(name: str, region: str) -> bool:
    """Whether a variable is a list or dictionary that is filled after it is set."""
    name = re.escape(name)
    return bool(re.search(rf"\b{name}(?:\[[^\]\n]+\] *=[^=]|\.(?:append|extend|add|update|insert)\()", region))


def assigned(place: Place) -> set[str]:
    """The names and attributes of self that the region assigns."""
    found: set[str] = set()
    for node in ast.walk(place.tree) if place.tree is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            found |= {ast.unparse(target).removeprefix("self.") for target in targets if isinstance(target, ast.expr)}
    return found


def defaults_of(place: Place) -> dict[str, ast.expr]:
    return defaults(place.function) if place.function else {}


def without_texts(text: str) -> str:
    """Code without its strings and numbers."""
    return re.sub(r"\"[^\"]*\"|'[^']*'|\b\d\w*", "", text)
