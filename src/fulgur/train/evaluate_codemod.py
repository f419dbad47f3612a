"""The strongest simple method for edits: regular expressions read the instruction, rules and calls carry it out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from fulgur.text.edit_format import CALL, END, NOEDIT
from fulgur.train.edits import EditExample
from fulgur.train.evaluate_tasks import Hole

NO = NOEDIT + END


class Codemod:
    """Regular expressions read the instruction; text rules and refactoring calls do it. It completes nothing."""

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
    name = match[1] or match[2]
    changed = re.sub(rf"(?m)^(import|from \S+ import) {re.escape(name)}\n", "", region)
    return changed + END if changed != region else call("remove_import", name)


def insert_first(template: str) -> Rule:
    """A rule that puts a statement at the start of the function's body; {1} … are the instruction's groups."""

    def rule(region: str, match: re.Match[str]) -> str:
        function = functions(region)[0]
        shift = 1 if region[:1] == " " else 0
        documented = ast.get_docstring(function) is not None and len(function.body) > 1
        line = function.body[1 if documented else 0].lineno - 1 - shift
        lines = region.split("\n")
        margin = re.match(r"\s*", lines[line])
        text = template
        for number, group in enumerate(match.groups(), 1):
            text = text.replace(f"{{{number}}}", group or "")
        added = [(margin[0] if margin else "") + part for part in text.split("\n")]
        return rewrite(region, "\n".join([*lines[:line], *added, *lines[line:]]))

    return rule


def add_parameter(region: str, match: re.Match[str]) -> str:
    return rewrite(region, re.sub(r"(def \w+\([^()\n]*?),?\)", rf"\g<1>, {match[1]}={match[2]})", region, count=1))


def remove_parameter(region: str, match: re.Match[str]) -> str:
    return call("remove_parameter", match[2], match[1])


NAME, VALUE = r"([A-Za-z_]\w*)", r"(\S+)"
KIND = "(?:local|function|method|class|variable|constant|parameter|param|argument|arg|symbol)"
DEFAULT = substitute(r"(\b{1}(?:: [^=,]+)?\s*=\s*)[^,)]+", r"\g<1>{2}")
NONE_RAISES = insert_first('if {2} is None:\n    raise {1}("{2} must not be None")')
EMPTY_RAISES = insert_first('if not {2}:\n    raise {1}("{2} must not be empty")')
RULES: list[tuple[str, Rule]] = [
    (rf"rename (?:the |this )?(?:{KIND} )*{NAME}(?: of \w+)?(?: in \w+)? (?:to|->|=>|as|into) {NAME}", rename),
    (rf"{NAME} should be (?:called|named|renamed to) {NAME}", rename),
    (rf"(?:change|update|switch) (?:the )?(?:\w+ )?name (?:of |from )?{NAME} to {NAME}", rename),
    (rf"^call {NAME} {NAME} instead", rename),
    (r"import (\w+) from ([\w.]+)", add_import),
    (r"^from ([\w.]+) import (\w+)$", lambda region, match: call("add_import", "from", match[1], "import", match[2])),
    (r"unused imports|F401$", lambda region, match: call("remove_unused_imports")),
    (r"isort|(?:sort|order|organi[sz]e|alphabetize|reorder).*imports?", sort_imports),
    (rf"(?:remove|delete|drop|kill).*\bimport(?: of| for)? {NAME}|{NAME} is imported but unused", remove_import),
    (rf"^(?:add )?(?:the )?(?:missing )?import (?:for |of )?{NAME}$", add_import),
    (r"(?:remove|delete|drop|strip|get rid of).*docstring", drop_docstring),
    (r"(?:remove|delete|drop|strip|get rid of).*\bprint", substitute(r"^[ ]*print\(.*\)\n", "")),
    (r"(?:remove|delete|drop|strip|get rid of).*comment", substitute(r"^[ ]*#.*\n|[ ]+#[^\"'\n]*$", "")),
    (r"(?:remove|drop|strip).*(?:type|annotations|hints)", substitute(r"\) -> [^:\n]+:", "):")),
    (rf"remove (?:the )?(?:unused )?(?:parameter|argument|arg|param) {NAME} (?:from|of) {NAME}", remove_parameter),
    (rf"drop {NAME} from {NAME}$", remove_parameter),
    (rf"raise (?:a )?{NAME} (?:if|when) {NAME} is None", NONE_RAISES),
    (rf"return {VALUE} (?:early )?(?:if|when) {NAME} is None", insert_first("if {2} is None:\n    return {1}")),
    (rf"raise (?:a )?{NAME} (?:if|when|for an?) (?:not |empty )?{NAME}(?: is empty)?$", EMPTY_RAISES),
    (r"\bassert(?:ion)?(?: that)? (.+?)(?: at the .*)?$", insert_first("assert {1}")),
    (r"\bis\b.*None|None.*\bis\b|== None|E711", substitute(r"([\w\])]) == None\b", r"\1 is None")),
    (r"super", substitute(r"super\(\w+, \w+\)", "super()")),
    (r"keys\(\)", substitute(r"\.keys\(\)", "")),
    (r"Optional|\| None|PEP 604|union", substitute(r"\bOptional\[([\w.]+(?:\[[\w., ]+\])?)\]", r"\1 | None")),
    (r"isinstance", substitute(r"type\(([\w.]+)\) == ([\w.]+)", r"isinstance(\1, \2)")),
    (r"literal|\[\] and \{\}", substitute(r"\blist\(\)", "[]")),
    (r"double.quotes?", substitute(r"'([^'\"\\\n]*)'", r'"\1"')),
    (r"single.quotes?", substitute(r'"([^\'"\\\n]*)"', r"'\1'")),
    (r"truthiness|\blen\b|empt", substitute(r"len\(([\w.]+)\) == 0", r"not \1")),
    (r"\+=|augmented|in-place|shorthand|compound", substitute(r"^(\s*)([\w.]+) = \2 ([-+*/|]) ", r"\1\2 \3= ")),
    (r"\basync|coroutine", substitute(r"^([ ]*)def ", r"\1async def ")),
    (r"await (?:the call to |the result of )?([\w.]+)", substitute(r"(?<!await ){1}\(", r"await {1}(")),
    (rf"return {VALUE} (?:instead of|rather than) {VALUE}$", substitute(r"return {2}$", "return {1}")),
    (rf"raise (?:a )?{NAME} (?:here )?(?:instead of|rather than) {NAME}", substitute(r"raise {2}\b", "raise {1}")),
    (rf"default (?:value )?(?:of |for )?{NAME} (?:to|should be) {VALUE}", DEFAULT),
    (rf"{NAME} should default to {VALUE}", DEFAULT),
    (rf"(?:set|change|update|bump) ([\w.]+) to {VALUE}$", substitute(r"^(\s*{1}(?:: [^=]+)? = ).*$", r"\g<1>{2}")),
    (
        r"(?:only )?catch (?:only )?([\w.]+)|except (?:to )?([\w.]+)",
        substitute(r"except(?: Exception)?:", "except {1}{2}:"),
    ),
    (r"(?:return type|->) (?:should be |as |is |to )?([^?]+)$", substitute(r"\):$", ") -> {1}:")),
    (r"@(\S+)|decorate .* with (\S+)", substitute(r"\A([ ]*)", r"\1@{1}{2}\n\1")),
    (rf"(?:annotate|type) {NAME} (?:as|with) (\S.*)$", substitute(r"([(,] ?)({1})([,)=])", r"\1\2: {2}\3")),
    (rf"add (?:a |an )?(?:new )?(?:parameter |argument )?{NAME} ?= ?(\S+?)(?: to .*)?$", add_parameter),
    (r"keyword.* (?:calling|for|of) (\w+)$", lambda region, match: call("use_keywords", match[1])),
    (
        rf"extract {VALUE} (?:into|to|as) (?:a )?(?:constant )?(?:called )?{NAME}$",
        lambda region, match: call("extract_constant", match[1], match[2]),
    ),
]
