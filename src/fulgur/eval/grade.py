"""Grade answers: right is the same text, the same syntax tree with the same comments, or by an operation's own rule."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable

from fulgur.edit.refactor import LOCAL, RefactorError, apply_call, apply_local
from fulgur.edit.refactor.source import FUNCTIONS, Unusable, parse_region
from fulgur.edit.refactor.verify import renamed_only
from fulgur.eval.tasks import EditExample
from fulgur.text.edit_format import Answer, Call, NoEdit, Rewrite, parse_answer

IMPORTING = ("add_import", "remove_import", "sort_imports")


def normal(text: str) -> str:
    """The text without trailing white space and without blank lines at both ends."""
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def comments(text: str) -> list[str]:
    """The comments of a piece of code, in order; [] when it cannot be tokenised."""
    source = f"if 1:\n{text}" if text[:1] == " " else text
    try:
        return [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return []


def same_code(left: str, right: str) -> bool:
    """Equal text, or equal trees and comments."""
    if normal(left) == normal(right):
        return True
    try:
        return ast.dump(parse_region(left)) == ast.dump(parse_region(right)) and comments(left) == comments(right)
    except (Unusable, RecursionError):
        return False


def parses(text: str) -> bool:
    try:
        parse_region(text)
    except Unusable:
        return False
    return True


def settled(example: EditExample, produced: str) -> Answer:
    """The answer as the user sees it: calls inside the region are applied; a refused call is no edit."""
    answer = parse_answer(produced)
    if not isinstance(answer, Call):
        return answer
    try:
        if answer.name in LOCAL:
            return Rewrite(apply_local(example.region, answer, example.file[1] if example.file else example.below))
        if answer.name in IMPORTING and re.search(r"(?m)^(?:import|from) ", example.region):
            return Rewrite(apply_call(example.region, answer))
        if example.file is not None and isinstance(example.answer, NoEdit):
            above, below = example.file
            apply_call(above + example.region + below, answer, (len(above), len(above) + len(example.region)))
    except RefactorError:
        return NoEdit()
    return answer


def check(example: EditExample, produced: str) -> bool:
    """Whether the model's answer (special tokens spelled out) does what the example asks for."""
    expected, said = example.answer, parse_answer(produced)
    if said == expected:
        return True
    answer = settled(example, produced)
    if isinstance(expected, NoEdit):
        return isinstance(answer, NoEdit) or (isinstance(answer, Rewrite) and same_text(answer.text, example.region))
    if example.target is None:
        # A local rename that is written out as a rewrite counts like the call.
        assert isinstance(expected, Call)
        written_out = example.op == "rename_local" and isinstance(answer, Rewrite)
        return written_out and isinstance(answer, Rewrite) and renamed_only(example.region, answer.text, *expected.args)
    return isinstance(answer, Rewrite) and reaches(example, answer.text)


def reaches(example: EditExample, text: str) -> bool:
    """Whether this text of the region is the target, or equivalent by the operation's own rule."""
    if example.op in EXACT:
        return same_text(text, target(example))
    if same_code(text, target(example)):
        return True
    own = RULES.get(example.op)
    if own is None or same_text(text, example.region):
        return False
    try:
        return own(example, text)
    except (Unusable, RecursionError):
        return False


def same_text(left: str, right: str) -> bool:
    return normal(left) == normal(right)


def target(example: EditExample) -> str:
    assert example.target is not None
    return example.target


class _Bare(ast.NodeTransformer):
    """Removes the parts that an operation leaves open: docstrings, hints, messages."""

    def __init__(self, *, docstrings: bool = False, hints: bool = False, messages: bool = False) -> None:
        self.docstrings, self.hints, self.messages = docstrings, hints, messages

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if self.docstrings and isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            first = node.body[0]
            value = first.value if isinstance(first, ast.Expr) else None
            if len(node.body) > 1 and isinstance(value, ast.Constant) and isinstance(value.value, str):
                node.body = node.body[1:]
        if self.hints:
            if isinstance(node, ast.arg):
                node.annotation = None
            if isinstance(node, FUNCTIONS):
                node.returns = None
        if self.messages and isinstance(node, ast.Call):
            node.args = [_masked(arg) for arg in node.args]
        if self.messages and isinstance(node, ast.Assert) and node.msg is not None:
            node.msg = _masked(node.msg)
        return node


def _masked(node: ast.expr) -> ast.expr:
    text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    return ast.Constant(value="") if text else node


def bare(text: str, **free: bool) -> str:
    """The dump of a region's tree without the parts that are left open."""
    return ast.dump(_Bare(**free).visit(parse_region(text)))


def has_docstring(example: EditExample, produced: str) -> bool:
    """Whether the same functions and classes have docstrings as in the target, and nothing else differs."""
    if example.phrasing.startswith("add_docstring.text"):
        return False
    return (
        _docstrings(produced) == _docstrings(target(example))
        and bare(produced, docstrings=True) == bare(target(example), docstrings=True)
        and comments(produced) == comments(target(example))
    )


def _docstrings(text: str) -> list[str]:
    """The names of the functions and classes that have a docstring."""
    nodes = [node for node in ast.walk(parse_region(text)) if isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    return [node.name for node in nodes if (ast.get_docstring(node) or "").strip()]


def fully_annotated(example: EditExample, produced: str) -> bool:
    """Whether the same parameters and returns are annotated as in the target, and nothing else differs."""
    return (
        _annotated(produced) == _annotated(target(example))
        and bare(produced, hints=True) == bare(target(example), hints=True)
        and comments(produced) == comments(target(example))
    )


def _annotated(text: str) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    for node in ast.walk(parse_region(text)):
        if isinstance(node, ast.arg):
            found.append((node.arg, node.annotation is not None))
        elif isinstance(node, FUNCTIONS):
            found.append((node.name, node.returns is not None))
    return found


def return_annotation(example: EditExample, produced: str) -> bool:
    """Whether the code is the target, with or without quotes around the return type."""
    return _unquoted_returns(produced) == _unquoted_returns(target(example))


def _unquoted_returns(text: str) -> str:
    tree = parse_region(text)
    for node in ast.walk(tree):
        if (
            isinstance(node, FUNCTIONS)
            and isinstance(node.returns, ast.Constant)
            and isinstance(node.returns.value, str)
        ):
            node.returns = ast.parse(node.returns.value, mode="eval").body
    return ast.dump(tree)


def default_none(example: EditExample, produced: str) -> bool:
    """Whether the code is the target, taking `d.get(k, None)` and `d.get(k)` as the same."""

    def shape(text: str) -> str:
        return re.sub(r"\.get\(([^(),]+), None\)", r".get(\1)", text)

    return same_code(shape(produced), shape(target(example)))


def imports_in_any_order(example: EditExample, produced: str) -> bool:
    """Whether the imports are those of the target in any order, and the rest is the same."""

    def parts(text: str) -> tuple[list[str], list[str]]:
        body = parse_region(text).body
        imports = sorted(ast.dump(s) for s in body if isinstance(s, (ast.Import, ast.ImportFrom)))
        return imports, [ast.dump(s) for s in body if not isinstance(s, (ast.Import, ast.ImportFrom))]

    return parts(produced) == parts(target(example)) and comments(produced) == comments(target(example))


def free_message(example: EditExample, produced: str) -> bool:
    """Whether the code is the target except for the wording of new messages; old messages must stay."""
    return (
        bare(produced, messages=True) == bare(target(example), messages=True)
        and comments(produced) == comments(target(example))
        and not _strings(example.region) - _strings(produced)
    )


def _strings(text: str) -> Counter[str]:
    """The string constants of a region, including those inside f-strings."""
    nodes = ast.walk(parse_region(text))
    return Counter(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


# Operations on the text itself: an equal syntax tree is not enough.
EXACT = frozenset({"string_quotes"})
# Operations that leave some freedom, and the comparison that replaces that of the whole tree.
RULES: dict[str, Callable[[EditExample, str], bool]] = {
    "add_docstring": has_docstring,
    "add_import": imports_in_any_order,
    "add_type_hints": fully_annotated,
    "annotate_return": return_annotation,
    "guard_none": free_message,
    "log_entry": free_message,
    "raise_on_empty": free_message,
    "use_dict_get": default_none,
    "wrap_body_try": free_message,
    "wrap_try": free_message,
}
