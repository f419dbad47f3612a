"""Prove a rewrite wrong: it invents names, or changes what its instruction leaves alone.

The checks look for words in the instruction ("docstring", "type hints", "rename a to b"), and compare the syntax trees
without the parts that these words allow to change. They never repair anything, and never confirm that a rewrite is
right.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import tokenize
from collections import Counter

from fulgur.edit.refactor.source import FUNCTIONS, Unusable, parse_region
from fulgur.text.edit_format import Call

NAME = r"[`'\"]?([A-Za-z_]\w*)[`'\"]?"
KIND = r"(?:local|function|method|class|variable|constant|parameter|param|argument|arg|symbol|field|attribute|name)"
USES = r"(?:uses?|usages?|occurrences?|references|instances)"
TO = r"(?:to|into|as|->|=>|→)"
RENAMES = (
    rf"\brenam\w+\b (?:the |this |all |every )*(?:{USES} of )?(?:the )?(?:{KIND} )*(?:of |from )?{NAME}"
    rf"(?: (?:of|in) \S+)? {TO} (?:be )?{NAME}",
    rf"^s/{NAME}/{NAME}/",
    rf"{NAME} (?:should|must|needs to|ought to) be (?:called|named|renamed(?: to)?) {NAME}",
    rf"\b(?:change|update|switch) (?:the )?(?:\w+ )?name (?:of |from )?{NAME} (?:to|into) {NAME}",
    rf"^call (?:the )?(?:{KIND} )?{NAME} {NAME} instead(?! of)",
)
# Names a rewrite may introduce although neither the file nor the instruction has them.
_USUAL = """Any Optional Union Callable Iterable Iterator Sequence Mapping Dict List Set Tuple Type Generator Awaitable
Path typing collections abc dataclass dataclasses field functools contextlib logging logger log getLogger debug info
warning error exception critical warn Enum auto asyncio cls self suppress __name__ __init__ __class__ annotations
__future__ wraps cached_property lru_cache cache setter"""
USUAL = frozenset(_USUAL.split())
REMOVING = r"(?:please |pls |can you |could you )?(?:remove|delete|drop|exclude|get rid of|take out|strip|kill)\b"
CALL_WORDS = frozenset({"log", "double", "single"})  # arguments of calls that are not names
METHODS = frozenset(name for kind in (str, bytes, list, dict, set, tuple, int, Exception) for name in dir(kind))


def rename_asked(instruction: str) -> tuple[str, str] | None:
    """(old, new) if the instruction plainly asks for a rename."""
    for pattern in RENAMES:
        match = re.search(pattern, instruction.strip(), re.IGNORECASE)
        if match and not keyword.iskeyword(match[2]):
            return match[1], match[2]
    return None


def objection(before: str, after: str, instruction: str, file: str) -> str | None:
    """Why this rewrite of a region cannot be what was asked for, or None. `file` is the whole text of the file."""
    try:
        old, new = parse_region(before), parse_region(after)
    except (Unusable, RecursionError):
        return None
    renamed = rename_asked(instruction)
    if renamed is not None:
        return (
            None if renamed_only(before, after, *renamed) else f"it does not just rename {renamed[0]} to {renamed[1]}"
        )
    strange = invented(new, instruction, file)
    if strange:
        return f"it writes `{strange}`, which is neither in the file nor in the instruction"
    lost = unused(old, new, instruction)
    if lost:
        return f"it no longer uses `{lost}`"
    return beyond(old, new, before, after, instruction)


def call_objection(call: Call, instruction: str, file: str) -> str | None:
    """Why a call cannot be what was asked for, or None.

    A call may only name what the instruction or the file names; a new name must come from the instruction."""
    renamed = rename_asked(instruction)
    if renamed is not None and call.name in ("rename", "rename_parameter"):
        wanted = tuple(argument.rpartition(".")[2] for argument in call.args[-2:])
        if wanted != renamed:
            return f"it would rename {' to '.join(wanted)}"
    if call.name.startswith("add_") and re.match(REMOVING, instruction.strip(), re.IGNORECASE):
        return "it would add something, although the instruction removes something"
    known = set(words(instruction))
    if call.name in ("rename", "rename_parameter", "extract_constant") and call.args and call.args[-1] not in known:
        return f"the instruction does not mention the name {call.args[-1]}"
    if call.name == "extract_variable" and call.args and call.args[0] not in known:
        return f"the instruction does not mention the name {call.args[0]}"
    known |= set(words(file)) | set(dir(builtins)) | set(keyword.kwlist) | USUAL | CALL_WORDS
    free = call.name == "add_docstring"  # its text is the model's own
    for argument in call.args:
        missing = [word for word in words(argument) if word not in known and not free]
        if missing:
            return f"`{missing[0]}` is neither in the file nor in the instruction"
    return None


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def renamed_only(before: str, after: str, old: str, new: str) -> bool:
    """Whether the tokens differ only in this name; in strings and comments, the whole word may change or stay."""
    left, right = code_tokens(before), code_tokens(after)
    if left is None or right is None or len(left) != len(right):
        return False
    changed = False
    for (kind, one), (other_kind, two) in zip(left, right, strict=True):
        if kind != other_kind:
            return False
        if kind == tokenize.NAME:
            if two != (new if one == old else one):
                return False
            changed |= one == old
        elif one != two and re.sub(rf"\b{re.escape(old)}\b", new, one) != two:
            return False
    return changed


def code_tokens(text: str) -> list[tuple[int, str]] | None:
    source = f"if 1:\n{text}" if text[:1] in (" ", "\t") else text
    skipped = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    try:
        found = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return None
    return [(token.type, token.string) for token in found if token.type not in skipped]


def identifiers(text: str) -> set[str]:
    """The names in a piece of code, without those in strings and comments."""
    found = code_tokens(text) or ()
    return {word for kind, word in found if kind == tokenize.NAME and not keyword.iskeyword(word)}


def names(tree: ast.AST) -> tuple[Counter[str], set[str]]:
    """Every identifier with its number of occurrences, and the set of bound ones."""
    found: Counter[str] = Counter()
    bound: set[str] = set()
    for node in ast.walk(tree):
        for attribute in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, attribute, None)
            if isinstance(value, str):
                found.update(value.split("."))
                if attribute != "attr" and not isinstance(getattr(node, "ctx", None), ast.Load):
                    bound.add(value)
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update(node.module.split("."))
    return found, bound


def invented(new: ast.AST, instruction: str, file: str) -> str | None:
    """A name of unknown origin. A new variable is fine if the rewrite both binds and uses it."""
    known = set(words(instruction)) | set(words(file)) | set(dir(builtins)) | USUAL
    joined = {word.lower() for word in known} | {re.sub(r"\W+", "_", instruction.lower())}
    found, bound = names(new)
    for name, count in found.items():
        if name in known or name in METHODS or (name in bound and count > 1):
            continue
        if name.lower() not in joined and not all(part in joined for part in name.lower().split("_") if part):
            return name
    return None


def unused(old: ast.AST, new: ast.AST, instruction: str) -> str | None:
    """A parameter that is kept but no longer used, although the instruction does not remove anything."""
    if re.search(TAKING, instruction, re.IGNORECASE):
        return None
    given, kept = set(words(instruction)), names(new)[0]
    after = {node.id for node in ast.walk(new) if isinstance(node, ast.Name)}
    for function in ast.walk(old):
        if isinstance(function, FUNCTIONS):
            used = {node.id for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name)}
            for arg in ast.walk(function.args):
                if isinstance(arg, ast.arg) and arg.arg in used - after - given - {"self", "cls"} and arg.arg in kept:
                    return arg.arg
    return None


class Without(ast.NodeTransformer):
    """Removes from a tree the parts that one kind of instruction may change."""

    def __init__(self, *parts: str) -> None:
        self.parts = set(parts)

    def generic_module(self, tree: ast.Module) -> ast.AST:
        return self.visit(tree) or tree

    def visit(self, node: ast.AST) -> ast.AST | None:
        self.generic_visit(node)
        if "docstring" in self.parts and isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
        if "hints" in self.parts:
            if isinstance(node, ast.arg):
                node.annotation = None
            elif isinstance(node, FUNCTIONS):
                node.returns = None
            elif isinstance(node, ast.AnnAssign):
                if node.value is None:
                    return None
                return ast.Assign([node.target], node.value)
        if "decorators" in self.parts and isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            node.decorator_list = []
        if "imports" in self.parts and isinstance(node, (ast.Import, ast.ImportFrom)):
            return None
        if "asserts" in self.parts and isinstance(node, ast.Assert):
            return None
        if "defaults" in self.parts and isinstance(node, ast.arguments):
            node.defaults, node.kw_defaults = [], []
        if "await" in self.parts:
            if isinstance(node, ast.Await):
                return node.value
            if isinstance(node, ast.AsyncFunctionDef):
                fields = {name: getattr(node, name) for name in ast.FunctionDef._fields if hasattr(node, name)}
                return ast.FunctionDef(**fields)
            if isinstance(node, (ast.AsyncWith, ast.AsyncFor)):
                plain = ast.With if isinstance(node, ast.AsyncWith) else ast.For
                return plain(**{name: getattr(node, name) for name in plain._fields if hasattr(node, name)})
        if "pass" in self.parts and isinstance(node, ast.Pass):
            return None
        return node


# Words of an instruction, and the parts that it may then change; with several matches, all their parts.
ALLOWED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\bdoc-? ?strings?\b|\bdocstring", ("docstring",)),
    (r"\b(?:type )?(?:hints?|annotations?|annotate\w*)\b|\btype (?:of )?the\b|\btyping\b", ("hints",)),
    (r"\bdecorat\w+|(?:^|\s)@\w+", ("decorators",)),
    (r"\bimports?\b|\bisort\b", ("imports",)),
    (r"\bcomments?\b", ("comments",)),
    (r"\b(?:single|double)[- ]quot\w+", ("quotes",)),
)
TAKING = (
    r"\b(?:remov|delet|drop|strip|kill|get rid|inline|simplif|clean|no longer|without|stop|replac|chang|instead|return)"
)
LOOSE = r"\b(?:comment out|uncomment|constant|parameter|param|argument|return|value|raise|log|rename|wrap|extract)\b"


def beyond(old: ast.Module, new: ast.Module, before: str, after: str, instruction: str) -> str | None:
    """A change outside what the instruction's words allow."""
    text = instruction.lower()
    parts = {part for pattern, found in ALLOWED if re.search(pattern, text) for part in found}
    if not parts or (parts & {"comments", "quotes", "imports", "docstring"} and re.search(LOOSE, text)):
        return None
    if parts == {"hints"} and re.search(r"\breturn None\b|\bdefault\b", text):
        return None
    bare = Without(*parts, "pass")
    if ast.dump(bare.generic_module(old)) != ast.dump(bare.generic_module(new)):
        return f"it changes more than the {' and '.join(sorted(parts))}"
    return None
