"""Rules for what is raised, caught, chained, asserted, logged and put in messages, as users word it."""

from __future__ import annotations

import ast
import builtins
import re

from fulgur.edit.plain.guards import condition, raising
from fulgur.edit.plain.names import bound
from fulgur.edit.plain.place import Place, Rule, code, payload, unquoted
from fulgur.edit.plain.replacing import instead
from fulgur.edit.refactor.source import dotted, names_in
from fulgur.edit.refactor.verify import words
from fulgur.text.edit_format import Call

KIND = r"(?P<kind>[A-Z_]\w*(?:\.\w+)*)"
LEVEL = r"(?:debug|info|warning|warn|error|exception|critical)"
_MESSAGE = r"(?:error |exception |log )?(?:message|text|error|exception)"


def from_none(match: re.Match[str], place: Place) -> Call | None:
    """`from None`, if exactly one exception is raised in the handlers."""
    handlers = [n for n in ast.walk(place.tree) if isinstance(n, ast.ExceptHandler)] if place.tree is not None else []
    raises = [r for h in handlers for r in ast.walk(h) if isinstance(r, ast.Raise) and r.exc is not None]
    return Call("raise_from", ("None",)) if len(raises) == 1 and raises[0].cause is None else None


def assert_to_raise(match: re.Match[str], place: Place) -> Call | None:
    return Call("assert_to_raise", (match["kind"],)) if re.search(r"^\s*assert\b", place.region, re.MULTILINE) else None


def rejected(match: re.Match[str], place: Place) -> Call | None:
    """`reject negative sizes with a ValueError`: for the named parameter, or the only one."""
    if place.function is None:
        return None
    own = [name for name in place.parameters() if name not in ("self", "cls")]
    said = (match.groupdict().get("what") or "").strip("`").lower()
    plain = said in ("", "number", "numbers", "value", "values", "input", "inputs", "integers", "ints", "arguments")
    named = [name for name in own if name.lower() == said or f"{name.lower()}s" == said]
    if not named and not (plain and len(own) == 1):
        return None
    test = condition(f"{(named or own)[0]} is {match['state']}", place)
    return raising(match["kind"], test, place) if test is not None else None


def new_message(match: re.Match[str], place: Place) -> Call | None:
    """A literal message: `the message should be "…"`, `…: f"…"`."""
    said = match["value"].strip()
    if re.match(r"[fF][\"']", said):
        text = code(said)
        names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)} if text else set()
        known = {*bound(place), *place.parameters(), "self", "cls"}
        return Call("set_message", (text,)) if text and names <= known else None
    return Call("set_message", (unquoted(said),)) if said[:1] in "\"'`" and said[-1:] == said[:1] else None


def message_with(match: re.Match[str], place: Place) -> Call | None:
    """`include the path in the error message`, for a name that the region binds."""
    name = match["name"].strip("`")
    known = {*bound(place), *place.parameters()}
    if name == "self" or name.split(".")[0] not in {*known, "self"}:
        return None
    if name.startswith("self.") and not place.has(name):
        return None
    return Call("message_with", (name,)) if re.search(r"^\s*raise\b", place.region, re.MULTILINE) else None


def level(match: re.Match[str], place: Place) -> Call | None:
    """`log at debug, not warning`"""
    new, old = match["new"].lower(), (match.groupdict().get("old") or "").lower()
    if not re.search(r"(?i)log\w*\.\w+\(", place.region):
        return None
    return Call("log_level", (new, *((old,) if old else ())))


def handler_does(match: re.Match[str], place: Place) -> Call | None:
    """`re-raise instead of pass`, `return None in the except instead of swallowing it`."""
    if not re.search(r"^\s*except\b[^\n]*:\s*\n\s*pass\b", place.region, re.MULTILINE):
        return None
    said = match["does"].strip().lower()
    if re.fullmatch(r"(?:re-?)?raise(?: it| the (?:exception|error))?", said):
        return Call("instead_of_pass", ("raise",))
    if said in ("continue", "skip it", "return"):
        return Call("instead_of_pass", ("return" if said == "return" else "continue",))
    value = code(match["does"].strip()[len("return ") :]) if said.startswith("return ") else None
    return Call("instead_of_pass", ("return", value)) if value else None


def enough(match: re.Match[str], place: Place) -> Call | None:
    """`ValueError is enough in the except`: narrows a handler that lists several exceptions or catches everything."""
    return Call("narrow_except", (match["kind"],)) if re.search(r"^\s*except\b", place.region, re.MULTILINE) else None


def raise_other(match: re.Match[str], place: Place) -> Call | None:
    """`raise OSError instead of ValueError if path is empty`: if it is raised once, under that condition."""
    old, new = match["old"], match["kind"]
    raised = [n for n in ast.walk(place.tree) if isinstance(n, ast.Raise) and n.exc] if place.tree is not None else []
    kinds = [one.exc.func if isinstance(one.exc, ast.Call) else one.exc for one in raised]
    found = [one for one, kind in zip(raised, kinds, strict=True) if kind is not None and dotted(kind) == old]
    return Call("change_exception", (old, new)) if len(found) == 1 and _decided(found[0], match, place) else None


def return_other(match: re.Match[str], place: Place) -> Call | None:
    """`return 0 instead of None when it is empty`, if None is returned once, so that nothing else can be meant."""
    new, old = code(match["new"]), code(match["old"])
    if new is None or old is None or place.function is None:
        return None
    dump = ast.dump(ast.parse(old, mode="eval").body)
    found = [n for n in ast.walk(place.function) if isinstance(n, ast.Return) and n.value and ast.dump(n.value) == dump]
    english = re.fullmatch(r"[a-z]+", new) and new not in {*bound(place), *place.parameters()}
    return (
        Call("change_return", (new, old))
        if len(found) == 1 and not english and _decided(found[0], match, place)
        else None
    )


def _decided(statement: ast.stmt, match: re.Match[str], place: Place) -> bool:
    """Whether a statement depends on the names in the stated condition: through the tests around it, or if there are
    none, those before it."""
    named = bound(place) & set(words(match.groupdict().get("when") or ""))
    around, before = set[str](), set[str]()
    for node in ast.walk(place.tree) if named and place.tree is not None else ():
        if isinstance(node, ast.If):
            names = names_in(node.test)
        elif isinstance(node, ast.Try):
            names = names_in(ast.Module(node.body, []))
        else:
            continue
        around |= names if node.lineno < statement.lineno <= (node.end_lineno or 0) else set()
        before |= names if node.lineno < statement.lineno else set()
    return not named or bool(named & (around or before))


_WHEN = r"(?: (?:for|when|if|in case|on|whenever) (?P<when>[^,;]+))"


def named_exception(call: str) -> Rule:
    """A rule for one exception that is given by name."""

    def rule(match: re.Match[str], place: Place) -> Call | None:
        return Call(call, (match[1],)) if match[1][:1].isupper() or "." in match[1] else None

    return rule


def swap_exception(match: re.Match[str], place: Place) -> Call | None:
    new, old = match[1], match[2]
    if re.fullmatch(r"[\w.]+", new) and re.fullmatch(r"[\w.]+", old):
        return Call("change_exception", (old, new)) if re.search(rf"raise {re.escape(old)}\b", place.region) else None
    return instead(match, place)


def not_chained(match: re.Match[str], place: Place) -> Call | None:
    """`raise KIND from None`, if the region raises it in one place."""
    kind = match["kind"]
    handlers = place.region[max(place.region.find("except"), 0) :]
    known = kind is None or len(re.findall(rf"\braise {re.escape(kind)}\b", handlers)) == 1
    return Call("raise_from", ("None",)) if known else None


def catch_instead(match: re.Match[str], place: Place) -> Call | None:
    new, old = match[1], match[2]
    handlers = re.findall(r"^\s*except\b.*$", place.region, re.MULTILINE)
    named = [line for line in handlers if re.search(rf"\b{re.escape(old)}\b", line)]
    known = re.search(rf"\b{re.escape(new.split('.')[0])}\b", place.file) or hasattr(builtins, new)
    if len(named) != 1 or not known or not place.has(f"except {old}"):
        return None
    return Call("replace_text", (f"except {old}", f"except {new}"))


def message(match: re.Match[str], place: Place) -> Call | None:
    text = payload(match["value"]) if match["value"][:1] in "\"'`" else None
    return Call("set_message", (text,)) if text else None


def logged(match: re.Match[str], place: Place) -> Call | None:
    """Replace print by the file's logger."""
    found = match.groupdict()
    if "print(" not in place.region:
        return None
    name, level = found["logger"] or found.get("logger2") or "", found["level"] or found.get("level2")
    return Call(
        "log_prints", (name if name != "log" or "log." in place.file else "logger", *((level,) if level else ()))
    )


def other_exception(match: re.Match[str], place: Place) -> Call | None:
    """`change OLD to NEW`, for exceptions that the region raises or catches once."""
    old, new = match["old"], match["new"]
    if len(re.findall(rf"\braise {re.escape(old)}\b", place.region)) == 1:
        return Call("change_exception", (old, new))
    handlers = len(re.findall(rf"^\s*except\b.*\b{re.escape(old)}\b", place.region, re.MULTILINE))
    return (
        Call("replace_text", (f"except {old}", f"except {new}"))
        if handlers == 1 and place.has(f"except {old}")
        else None
    )


def raises(match: re.Match[str], place: Place) -> Call | None:
    """`should raise KIND`, if exactly one exception is raised."""
    found = re.findall(r"^\s*raise ([A-Za-z_][\w.]*)", place.region, re.MULTILINE)
    return Call("change_exception", (found[0], match["kind"])) if len(found) == 1 else None


def asserted(match: re.Match[str], place: Place) -> Call | None:
    test = condition(match["test"], place)
    return Call("add_assert", (test,)) if test and place.function is not None else None


def caught(call: str) -> Rule:
    def rule(match: re.Match[str], place: Place) -> Call | None:
        kind = match["kind"]
        if call == "uncatch" and not re.search(rf"^\s*except \(.*\b{re.escape(kind)}\b", place.region, re.MULTILINE):
            return None  # the handler catches nothing else
        return Call(call, (kind,)) if kind.rpartition(".")[2][:1].isupper() and "except" in place.region else None

    return rule


RULES: list[tuple[str, Rule]] = [
    (r"(use |add |raise (\.\.\. |it |the (\w+ )?(error|exception) )?|re-?raise |with |needs [a] |should (be|use) )*"
     r"`?from none`?", from_none),
    (rf"(raise|throw) [an?] {KIND},? (instead of|rather than|not|in place of) [the|an?|that|this] assert(ion|s)?"
     r"( statement)?", assert_to_raise),
    (rf"(replace|turn|convert|change) [the|that|this] assert(ion)?( statement)? (with|by|into|to) [an?|a "
     rf"(proper|real) |raise|raising] ?[an?] {KIND}( exception)?", assert_to_raise),
    (rf"(no|don'?t use|avoid) asserts?( here)?[,;:]? (raise|throw|use) [an?] {KIND} [instead]", assert_to_raise),
    (rf"(reject|disallow|forbid|don'?t (allow|accept)|refuse) (?P<state>negative|empty|zero|none|blank|non-?positive) ?"
     rf"(?P<what>`?\w+`?)?,? (with|by raising|and raise|raise|raising|via) [an?] {KIND}", rejected),
    (rf"(raise|throw) [an?] {KIND} (for|on|if given) (an? )?(?P<state>negative|empty|zero|none|blank) "
     rf"?(?P<what>`?\w+`?)?",
     rejected),
    (rf"(raise|use|give|show|say|have) [an?] (more |better |clearer )?(helpful |useful |specific |nicer )?{_MESSAGE}: "
     r"(?P<value>.+)", new_message),
    (rf"([\w' ]+ )?(in|for) the {_MESSAGE}: ?(?P<value>f?[\"'].+)", new_message),
    (rf"(fix|change|update) [the] {_MESSAGE}[:,] [it] (should|must) (be|say|read)[:,]? (?P<value>f?[\"'`].+)",
     new_message),
    (rf"[the] {_MESSAGE} (should|must) (be|say|read)[:,]? (?P<value>f?[\"'`].+)", new_message),
    (rf"(change|set|make|update|fix|improve) [the] {_MESSAGE} ?(to|:|be|say)? (?P<value>f?[\"'`].+)", new_message),
    (rf"(include|put|show|add|mention|print|have|use) [the|what] [value of|actual|offending|bad|wrong|given] ?"
     rf"(?P<name>`?[\w.]+`?)( (was|is|it got))? (in|into|to|inside) [the] {_MESSAGE}", message_with),
    (rf"[the] {_MESSAGE} (should|must) (include|contain|mention|show|have) [the] [value of|actual|offending] "
     r"(?P<name>`?[\w.]+`?)", message_with),
    (rf"(log|use|make it|make this)( (it|this))? ((at|with|as|on|to) )?(the )?(level )?(?P<new>{LEVEL})( level)?"
     rf"(( instead)|,? (instead of|not|rather than) (at )?(?P<old>{LEVEL})( level)?)", level),
    (rf"(log|make it|make this|use)( (it|this))? (at|with|as|on) [the] (?P<new>{LEVEL})( level)", level),
    (rf"[use] (log|logger|logging)\.(?P<new>{LEVEL})(\(\))? (instead of|not|rather than) "
     rf"((log|logger|logging)\.)?(?P<old>{LEVEL})(\(\))?", level),
    (rf"(this|it|that) should be (logged (at|as) )?(an? )?(?P<new>{LEVEL})( (level|log))?"
     rf"(,? not [an?] (?P<old>{LEVEL}))?", level),
    (rf"(change|switch|lower|raise|set|bump|downgrade) [the] (log |logging )?level ?(from (?P<old>{LEVEL}) )?(to) "
     rf"(?P<new>{LEVEL})", level),
    (r"(?P<does>(re-?)?raise( it| the (exception|error))?|continue|skip it|return( \S+)?)( in the (except|handler))?,? "
     r"(instead of|rather than|not|don'?t) (pass|just pass|passing|swallow(ing)?|ignor(e|ing)|silenc(e|ing)|the pass)"
     r"( (it|the (error|exception)|errors|exceptions))?( (silently|in the (except|handler)))?", handler_does),
    (r"(don'?t|do not|stop|never) (just )?(swallow|ignore|silence|swallowing|ignoring) (it|the "
     r"(error|exception)|errors|"
     r"exceptions)( silently)?[,;:]? (?P<does>(re-?)?raise( it)?|return \S+|continue)", handler_does),
    (rf"{KIND} is enough( (here|in the (except|handler)( clause)?|to catch))?", enough),
    (rf"(except|catch(ing)?) {KIND} (is enough|suffices|will do)( here)?", enough),
    (rf"(raise|throw) [an?] {KIND}{_WHEN},? (not|instead of|rather than) [an?] (?P<old>[A-Z]\w+)", raise_other),
    (rf"(raise|throw|use)? ?[an?] {KIND} (instead of|not|rather than) [an?] (?P<old>[A-Z]\w+(Error|Exception|Invalid|"
     rf"Warning)){_WHEN}", raise_other),
    (rf"(should )?return (?P<new>\S+) (instead of|not|rather than) (?P<old>\S+){_WHEN}", return_other),
    (rf"(should )?return (?P<new>[^\s,]+){_WHEN},? (instead of|not|rather than) (?P<old>\S+)", return_other),
]  # fmt: skip
