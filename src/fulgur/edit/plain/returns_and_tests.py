"""Rules for what is returned, and for the tests that decide it."""

from __future__ import annotations

import ast
import re

from fulgur.edit.plain.example import makes
from fulgur.edit.plain.names import bound
from fulgur.edit.plain.place import Place, code
from fulgur.edit.refactor.local.exact import places_of
from fulgur.text.edit_format import Call


def swap_return(match: re.Match[str], place: Place) -> Call | None:
    new, old = code(match[1]), code(match[2])
    return Call("change_return", (new, old)) if new and old and place.has(f"return {old}") else None


def bare_return(match: re.Match[str], place: Place) -> Call | None:
    return Call("replace_text", ("return None", "return")) if place.has("return None") else None


def returned(match: re.Match[str], place: Place) -> Call | None:
    """`return EXPRESSION`, in a function with one return: replaces its value."""
    new = code(match["value"])
    if new is None or place.function is None or (re.fullmatch(r"[a-z]+", new) and new not in bound(place)):
        return None
    found = [node for node in ast.walk(place.function) if isinstance(node, ast.Return)]
    if len(found) != 1 or found[0].value is None or not re.search(r"[^\w.]", new):
        return None
    old = ast.unparse(found[0].value)
    if isinstance(found[0].value, ast.Name):
        assigned = re.search(
            rf"^\s*{re.escape(old)} = (.+)\n\s*return {re.escape(old)}\s*$", place.region, re.MULTILINE
        )
        if not assigned:
            return None
        same = code(assigned[1]) is not None and ast.dump(ast.parse(assigned[1])) == ast.dump(ast.parse(new))
        return Call("return_directly", (old,)) if same else None
    names = {n.id for n in ast.walk(ast.parse(new)) if isinstance(n, ast.Name)}
    alike = names & {n.id for n in ast.walk(found[0].value) if isinstance(n, ast.Name)}
    return Call("change_return", (new, old)) if alike and place.has(f"return {old}") and new != old else None


def ternary_return(match: re.Match[str], place: Place) -> Call | None:
    """`return A if TEST else B`, where an if statement returns these values."""
    wanted = code(match["value"])
    if wanted is None or not isinstance(ast.parse(wanted, mode="eval").body, ast.IfExp):
        return None
    return Call("use_ternary") if makes(place, "use_ternary", f"return {wanted}") else None


def is_true(match: re.Match[str], place: Place) -> Call | None:
    """`if X` for the one comparison of X with an empty value."""
    test, empty = code(match[1]), code(match[2])
    found = [old for old in (f"{test} != {empty}", f"{test} == {empty}") if test and place.has(old)]
    if len(found) != 1 or not re.search(rf"(?:if|while|and|or) {re.escape(found[0])}", place.region):
        return None
    return Call("replace_text", (found[0], f"not {test}" if "==" in found[0] else str(test)))


def flatten(match: re.Match[str], place: Place) -> Call | None:
    test = code(match[1])
    same = test is not None and code(match[2]) == test
    return Call("flatten_elif", (test,)) if same and test else None


def looked_up(match: re.Match[str], place: Place) -> Call | None:
    """`conf.get(key)`, where the region looks up this key; `conf.get`, where it looks up any key."""
    if (given := match.groupdict().get("given")) and not makes(place, "use_dict_get", f"{match['map']}.get{given}"):
        return None
    return Call("use_dict_get") if re.search(rf"\bin {re.escape(match['map'])}\b", place.region) else None


def membership(match: re.Match[str], place: Place) -> Call | None:
    """`x in (1, 2)`, with any kind of brackets, where the region compares x with these one by one."""
    text = code(match["test"])
    node = ast.parse(text, mode="eval").body if text else None
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return None
    listed = node.comparators[0]
    if isinstance(listed, (ast.List, ast.Set)):
        node.comparators[0] = ast.Tuple(listed.elts, ast.Load())
    return Call("use_in") if makes(place, "use_in", ast.unparse(node)) else None


def other_test(match: re.Match[str], place: Place) -> Call | None:
    """`if NEW instead of OLD`: the test of an if that occurs once; OLD may be short, such as "the len"."""
    new, old = code(match["new"]), match["old"].strip("`").removeprefix("if ")
    if new is None:
        return None
    if re.match(r"(?:the )?len\b|(?:comparing |checking |testing )(?:the )?len", old):
        tests = re.findall(r"\blen\(([\w.]+)\) *(?:[=!]=|>|<) *[01]|\bif (?:not )?len\(([\w.]+)\)", place.region)
        names = ["".join(found) for found in tests]
        return Call("use_truthiness") if names == [new.removeprefix("not ")] else None
    if code(old) is None or len(places_of(place.region, f"if {old}")) != 1:
        return None
    return Call("replace_text", (f"if {old}", f"if {new}"))
