"""The strongest simple baseline for edits: regular expressions parse the instruction, refactorings carry it out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from fulgur.eval.tasks import EditExample, Hole
from fulgur.text.edit_format import CALL, END, NOEDIT

NO = NOEDIT + END


class Codemod:
    """Regular expressions parse the instruction, and the model's refactoring calls carry it out. No completions."""

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


def calls(template: str) -> Rule:
    """A rule that answers with a call; {1} and {2} are the groups matched in the instruction."""

    def rule(region: str, match: re.Match[str]) -> str:
        text = template
        for number, group in enumerate(match.groups(), 1):
            text = text.replace(f"{{{number}}}", group or "")
        return call(text)

    return rule


def parsed(region: str) -> ast.Module:
    return ast.parse(f"if 1:\n{region}" if region[:1] == " " else region)


def rename(region: str, match: re.Match[str]) -> str:
    old, new = match[1], match[2]
    functions = [n for n in ast.walk(parsed(region)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for function in functions:
        if old in {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}:
            return call("rename_parameter", function.name, old, new)
    return call("rename", old, new) if re.search(rf"\b{re.escape(old)}\b", region) else NO


def add_import(region: str, match: re.Match[str]) -> str:
    line = f"from {match[2]} import {match[1]}" if match.lastindex == 2 else f"import {match[1]}"
    return call("add_import", line)


NAME, VALUE = r"([A-Za-z_]\w*)", r"(\S+)"
DOTTED = r"([A-Za-z_][\w.]*)"
KIND = "(?:local|function|method|class|variable|constant|parameter|param|argument|arg|symbol)"
REMOVE = "(?:remove|delete|drop|strip|kill|get rid of)"
RULES: list[tuple[str, Rule]] = [
    (rf"rename (?:the |this )?(?:{KIND} )*{NAME}(?: of \w+)?(?: in \w+)? (?:to|->|=>|as|into) {NAME}", rename),
    (rf"{NAME} should be (?:called|named|renamed to) {NAME}", rename),
    (rf"(?:change|update|switch) (?:the )?(?:\w+ )?name (?:of |from )?{NAME} to {NAME}", rename),
    (rf"^call {NAME} {NAME} instead", rename),
    (r"import (\w+) from ([\w.]+)", add_import),
    (r"^from ([\w.]+) import (\w+)$", calls("add_import from {1} import {2}")),
    (r"unused imports|F401$", calls("remove_unused_imports")),
    (r"isort|(?:sort|order|organi[sz]e|alphabetize|reorder).*imports?", calls("sort_imports")),
    (rf"{REMOVE}.*\bimport(?: of| for)? {NAME}|{NAME} is imported but unused", calls("remove_import {1}{2}")),
    (rf"^(?:add )?(?:the )?(?:missing )?import (?:for |of )?{NAME}$", add_import),
    (rf"{REMOVE}.*docstring", calls("remove_docstring")),
    (rf"{REMOVE}.*\bprint", calls("remove_prints")),
    (rf"{REMOVE}.*comment", calls("remove_comments")),
    (rf"{REMOVE}.*(?:types?|annotations|hints)\b", calls("remove_type_hints")),
    (
        rf"remove (?:the )?(?:unused )?(?:parameter|argument|arg|param) {NAME} (?:from|of) {NAME}",
        calls("remove_parameter {2} {1}"),
    ),
    (rf"drop {NAME} from {NAME}$", calls("remove_parameter {2} {1}")),
    (rf"raise (?:a )?{NAME} (?:if|when) {NAME} is None", calls("guard_none {2} raise {1}")),
    (rf"return {VALUE} (?:early )?(?:if|when) {NAME} is None", calls("guard_none {2} return {1}")),
    (
        rf"raise (?:a )?{NAME} (?:if|when|for an?) (?:not |empty )?{NAME}(?: is empty)?$",
        calls("raise_if_empty {2} {1}"),
    ),
    (r"\bassert(?:ion)?(?: that)? (.+?)(?: at the .*)?$", calls("add_assert {1}")),
    (rf"(?:ignore|swallow|suppress) {NAME} (?:from|raised by|in) {DOTTED}", calls("wrap_try {2} {1} pass")),
    (
        rf"(?:return|give back) {VALUE} (?:if|when) {DOTTED} (?:raises|fails with) {NAME}",
        calls("wrap_try {2} {3} return {1}"),
    ),
    (rf"inline (?:the )?(?:variable |temp |local )*{NAME}$", calls("inline {1}")),
    (rf"extract (.+) (?:in)?to (?:a )?(?:variable )?(?:called |named )?{NAME}$", calls("extract_variable {2} {1}")),
    (rf"add (\S+): (.+) to {DOTTED}$", calls("add_entry {3} {1} {2}")),
    (rf"(?:add|append) (\S+) to {DOTTED}$", calls("add_item {2} {1}")),
    (rf"pass {NAME} ?= ?(\S+) to {DOTTED}$", calls("add_keyword {3} {1} {2}")),
    (r"early|guard clause", calls("early_return")),
    (
        r"\belse\b.*(?:return|raise|continue|break)|(?:return|raise|continue|break).*\belse\b",
        calls("remove_else_return"),
    ),
    (r"nested ifs?|merge the ifs|combine the (?:ifs|conditions)", calls("merge_nested_if")),
    (r"comprehension", calls("use_comprehension")),
    (r"enumerate", calls("use_enumerate")),
    (r"\.?items\(\)|\bitems\b", calls("use_items")),
    (r"\b(?:any|all)\(?\)?\b.*(?:loop|instead|builtin)|\buse (?:any|all)\b", calls("use_any_all")),
    (r"with statement|context manager|\bwith block", calls("use_with")),
    (r"(?:expand|unfold|replace|no) .*ternary|ternary into", calls("expand_ternary")),
    (r"ternary|conditional expression|one-?liner", calls("use_ternary")),
    (r"dict\.get|\.get\(|\bget with", calls("use_dict_get")),
    (r"return (?:it |the \w+ )?directly|directly return", calls("return_directly")),
    (r"(?:swap|invert|flip|reverse) the (?:if|branches|condition)", calls("swap_branches")),
    (r"f-?strings?", calls("use_fstring")),
    (r"chain", calls("chain_comparison")),
    (r"not in\b", calls("not_in")),
    (r"membership|\bin \(|with in\b", calls("use_in")),
    (r"raise from|from e\b|exception chaining", calls("raise_from")),
    (r"\bis\b.*None|None.*\bis\b|== None|E711", calls("is_none")),
    (r"super", calls("modern_super")),
    (r"keys\(\)", calls("drop_keys")),
    (r"Optional|\| None|PEP 604|union", calls("optional_union")),
    (r"isinstance", calls("use_isinstance")),
    (r"literal|\[\] and \{\}", calls("use_literal")),
    (r"double.quotes?", calls("quotes double")),
    (r"single.quotes?", calls("quotes single")),
    (r"truthiness|\blen\b|empt", calls("use_truthiness")),
    (r"\+=|augmented|in-place|shorthand|compound", calls("augmented_assignment")),
    (r"print.* (\w[\w.]*)\.(debug|info|warning|error)\b", calls("log_prints {1} {2}")),
    (r"\b(\w[\w.]*)\.(debug|info|warning|error)\b.*print", calls("log_prints {1} {2}")),
    (r"\basync|coroutine", calls("make_async")),
    (r"await (?:the call to |the result of )?([\w.]+)", calls("add_await {1}")),
    (rf"return {VALUE} (?:instead of|rather than) {VALUE}$", calls("change_return {1} {2}")),
    (rf"raise (?:a )?{NAME} (?:here )?(?:instead of|rather than) {NAME}", calls("change_exception {2} {1}")),
    (rf"default (?:value )?(?:of |for )?{NAME} (?:to|should be) {VALUE}", calls("change_default {1} {2}")),
    (rf"{NAME} should default to {VALUE}", calls("change_default {1} {2}")),
    (rf"(?:set|change|update|bump) ([\w.]+) to {VALUE}$", calls("set_value {1} {2}")),
    (r"(?:only )?catch (?:only )?([\w.]+)|except (?:to )?([\w.]+)", calls("narrow_except {1}{2}")),
    (r"(?:return type|->) (?:should be |as |is |to )?([^?]+)$", calls("annotate_return {1}")),
    (r"@(\S+)|decorate .* with (\S+)", calls("add_decorator {1}{2}")),
    (rf"(?:annotate|type) {NAME} (?:as|with) (\S.*)$", calls("annotate {1} {2}")),
    (
        rf"add (?:a |an )?(?:new )?(?:parameter |argument )?{NAME} ?= ?(\S+?)(?: to .*)?$",
        calls("new_parameter {1}={2}"),
    ),
    (r"keyword.* (?:calling|for|of) (\w+)$", calls("use_keywords {1}")),
    (rf"extract {VALUE} (?:into|to|as) (?:a )?(?:constant )?(?:called )?{NAME}$", calls("extract_constant {1} {2}")),
]
