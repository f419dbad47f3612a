"""Fast or deep? The rules of `model = "auto"`: data in the config, where the first rule that fits decides.

A rule fits if everything it names holds. The config's rules come before the built-in ones; one with the name of a
built-in rule replaces it, and `use = "off"` removes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from fulgur.agent.route.question import is_question
from fulgur.config.settings import Settings
from fulgur.errors import UsageError
from fulgur.protocol.agent import Side

OTHER: dict[Side, Side] = {"fast": "deep", "deep": "fast"}


@dataclass(frozen=True)
class Rule:
    """`words`: regular expressions, one of which must match in the prompt. `files`: at least this many are named.
    `context_percent`: how much of the fast model's context the conversation fills. `question`: the prompt is one."""

    name: str
    use: Side
    why: str
    words: tuple[str, ...] = ()
    files: int = 0
    context_percent: int = 0
    question: bool = False

    def fits(self, task: Task) -> str:
        """What in the task matched; empty if the rule does not fit."""
        found = []
        if self.words:
            match = next((m for w in self.words if (m := re.search(w, task.text, re.IGNORECASE))), None)
            if match is None:
                return ""
            found.append(f"“{' '.join(match.group().split())}”")
        if self.files:
            if len(task.files) < self.files:
                return ""
            found.append(", ".join(task.files[:3]))
        if self.context_percent:
            if task.context_percent < self.context_percent:
                return ""
            found.append(f"{task.context_percent:.0f}% of the fast model's context is full")
        if self.question:
            if not is_question(task.text):
                return ""
            found.append("it asks")
        return ", ".join(found)


BUILT_IN: tuple[Rule, ...] = (
    Rule("long-context", "deep", "the conversation is long for the fast model", context_percent=60),
    Rule(
        "architecture",
        "deep",
        "it is about the design of several parts",
        (
            r"\barchitect\w*",
            r"\b(re)?design\b",
            r"\bmigrat\w+",
            r"\bplan (for|how|the)\b",
            r"\brestructure\b",
            r"\bfrom scratch\b",
        ),
    ),
    Rule(
        "multi-file",
        "deep",
        "it spans several files",
        (
            r"\b(all|every|several|many) (the )?(files?|modules?|callers?|usages?|packages?)\b",
            r"\b(across|throughout|everywhere)\b",
            r"\b(whole|entire) (project|repo\w*|code ?base|package)\b",
        ),
    ),
    Rule("many-files", "deep", "it names several files", files=2),
    Rule(
        "tests",
        "deep",
        "tests have to be run and read",
        (
            r"\bfail(s|ing|ed)?\b.{0,40}\btests?\b",
            r"\btests?\b.{0,40}\b(fail|pass|green|fix)",
            r"\b(write|add) .{0,20}\btests?\b",
            r"\bdebug\b",
        ),
    ),
    Rule("question", "fast", "a question", question=True),
    Rule(
        "edit",
        "fast",
        "a small edit in one place",
        (
            r"\brenam\w+",
            r"\b(add|write|fix|update|remove) (a |an |the |its )?"
            r"(\w+ )?(docstring|comment|type hints?|import|typo|parameter|argument|line|log\w*)s?\b",
            r"\b(inline|extract|reformat|sort|reorder|typo)\b",
        ),
    ),
    Rule("one-file", "fast", "it names one file", files=1),
)

# `@any/path`, or a word that ends like a file name: `app.py`, `src/app.py:12`.
_FILE = re.compile(r"@([\w./-]+)|(?<![\w/.-])([\w./-]*\w\.[a-z]{1,4})(?=[\s:,;)?!]|\.?$)", re.IGNORECASE)


@dataclass(frozen=True)
class Task:
    """What a rule looks at."""

    text: str
    context_percent: float = 0.0
    fast_abilities: Collection[str] | None = None
    """None: not known without asking its server."""

    @property
    def files(self) -> list[str]:
        """The files that the prompt names."""
        named = (match[1] or match[2] for match in _FILE.finditer(self.text))
        return list(dict.fromkeys(name.rstrip(".") for name in named))


@dataclass(frozen=True)
class Choice:
    """Which model, and why: `rule` is the name of the rule, `by` what it matched."""

    side: Side
    model: str
    why: str
    rule: str = ""
    by: str = ""

    def __str__(self) -> str:
        by = f" ({self.by})" if self.by else ""
        return f"{self.side}, {self.model}: {self.why}{by}"


def rules(settings: Settings) -> list[Rule]:
    """The rules in the order they are tried."""
    own = {name: _own(settings, name) for name in settings.router_rules}
    built_in = [own.pop(rule.name, rule) for rule in BUILT_IN]
    return [rule for rule in (*own.values(), *built_in) if rule is not None]


def _own(settings: Settings, name: str) -> Rule | None:
    fields = settings.router_rule(name)
    use = fields.get("use")
    if use == "off":
        return None
    if use is None:
        raise UsageError(f"router.rules.{name}.use is missing", hint="Set it to fast, deep or off.")
    words = tuple(cast("list[str]", fields.get("words") or []))
    for word in words:
        try:
            re.compile(word)
        except re.error as error:
            raise UsageError(f"router.rules.{name}.words: {word!r} is not a regular expression: {error}") from None
    files, percent = cast(int, fields.get("files") or 0), cast(int, fields.get("context_percent") or 0)
    question = bool(fields.get("question"))
    if not (words or files or percent or question):
        raise UsageError(f"router.rules.{name} would match everything", hint="`router.default` is for everything else.")
    why = str(fields.get("why") or f"rule {name}")
    return Rule(name, cast(Side, use), why, words, files, percent, question)


def decide(task: Task, settings: Settings) -> Choice:
    """Choose the model for a task."""
    found = next(((rule, by) for rule in rules(settings) if (by := rule.fits(task))), None)
    rule, by = found if found is not None else (None, "")
    side: Side = rule.use if rule is not None else cast(Side, settings.text("router.default"))
    abilities = task.fast_abilities
    if side == "fast" and abilities is not None and is_question(task.text) and "chat" not in abilities:
        return Choice("deep", model_of(settings, "deep"), "the fast model only edits", "question", "it asks")
    why = rule.why if rule is not None else "no rule fits"
    return Choice(side, model_of(settings, side), why, rule.name if rule else "default", by)


def model_of(settings: Settings, side: Side) -> str:
    """The name of the fast or the deep model, as configured."""
    name = settings.text(f"router.{side}")
    if name is None:
        raise UsageError(
            f'router.{side} is not set, and model = "auto" needs it',
            hint=f'For example {side} = "ollama:qwen3-coder:30b" under [router]; `/model` lists what there is.',
        )
    return name
