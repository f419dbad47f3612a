"""Judge each introduced item with jedi: a problem in words, or nothing.

An item is reported missing only when everything about its object was inferred. A second, fresh inference watches for
what jedi silently leaves out: an unknown side of an `or`, one of two returns, a parameter without a type.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jedi
from jedi.inference import docstrings
from jedi.inference.base_value import NO_VALUES
from jedi.inference.helpers import infer_call_of_leaf
from jedi.plugins import plugin_manager

from fulgur.edit.checks.members.evidence import Evidence
from fulgur.edit.checks.members.introduced import Attribute, Call, Import, Item
from fulgur.edit.checks.members.known import closed, decorators, has_member, is_none, members, plain_function, running
from fulgur.edit.checks.members.problem import Problem
from fulgur.edit.checks.members.watch import TookTooLong, Watch

_KINDS = inspect.Parameter
_watch = Watch()


class _NoGuesses:
    """A jedi plugin: a parameter has the type of its annotation, not what its default or its callers suggest."""

    @staticmethod
    def infer_anonymous_param(infer: Any) -> Any:
        def only_annotated(param: Any) -> Any:
            return infer(param) if param.infer_annotation() or _is_fixture(param) else NO_VALUES

        return only_annotated


def _is_fixture(param: Any) -> bool:
    return bool(param.string_name in ("monkeypatch", "tmp_path", "capsys", "caplog"))


def set_up(cache: Path) -> None:
    """Configure jedi, once per process: it guesses nothing, and writes nothing outside `cache`."""
    jedi.settings.cache_directory = cache
    jedi.settings.dynamic_params = False
    jedi.settings.dynamic_array_additions = False
    jedi.settings.auto_import_modules = []
    docstrings.infer_param = lambda *args: NO_VALUES
    docstrings.infer_return_types = lambda *args: NO_VALUES
    plugin_manager.register(_NoGuesses)
    _watch.install()


class Judge:
    """Judges the items introduced into one text."""

    def __init__(self, source: str, path: Path, project: jedi.Project, evidence: Evidence) -> None:
        self._source, self._path, self._project = source, path, project
        self._script = self._fresh()
        self._evidence = evidence

    def _fresh(self) -> Any:
        # Use this interpreter: by default jedi finds another one and starts it.
        here = jedi.InterpreterEnvironment()
        return jedi.Script(self._source, path=self._path, project=self._project, environment=here)

    def judge(self, item: Item, deadline: float, most: float) -> list[Problem] | None:
        """The problems of an item; None when it timed out. `most`: the seconds for this item."""
        _watch.deadline = min(deadline, time.monotonic() + most)
        self._evidence.deadline = deadline
        try:
            if isinstance(item, Import):
                return self._import(item)
            if isinstance(item, Attribute) and item.value in self._evidence.imported_parts:
                return self._running_part(item)
            problems = [] if item.shifting else self._found(self._script, item)
            return problems if problems and self._certain(item) else []
        except TookTooLong:
            self._script = self._fresh()  # the old one was interrupted and may be inconsistent
            return None

    def _certain(self, item: Attribute | Call) -> bool:
        """Whether every inference step was known; on a fresh script, since cached values are not inferred again."""
        script = self._fresh()
        _watch.unknown = False
        self._values(script, item)
        return not _watch.unknown

    def _found(self, script: Any, item: Attribute | Call) -> list[Problem]:
        values = [value for value in self._values(script, item) if not is_none(value)]
        return list(self._attribute(values, item) if isinstance(item, Attribute) else self._call(values, item))

    def _values(self, script: Any, item: Attribute | Call) -> list[Any]:
        """The values of the expression before the dot or the parenthesis."""
        script._inference_state.reset_recursion_limitations()  # jedi's counters carry over from item to item
        column = item.column if isinstance(item, Attribute) else item.column + 1
        leaf = script._module_node.get_leaf_for_position((item.line, column), include_prefixes=False)
        if leaf is None or leaf.parent.type != "trailer":
            return []
        context = script._get_module_context().create_context(leaf)
        return list(infer_call_of_leaf(context, leaf, cut_own_trailer=True))

    def _attribute(self, values: list[Any], item: Attribute) -> Iterator[Problem]:
        # Report only if every possible object certainly lacks the attribute.
        if item.name.startswith("__") or not values:
            return
        if any(has_member(value, item.name) is not False for value in values):
            return
        if self._evidence.for_attribute(item, values):
            return
        among = {name for value in values for name in members(value)}
        yield Problem(item.line, item.name, f"{item.value} has no attribute {item.name}{near(item.name, among)}")

    def _running_part(self, item: Attribute) -> list[Problem]:
        """`os.path.joyn`: attributes of submodules that the standard library chooses at import time."""
        root, *rest = item.value.split(".")
        part: Any = importlib.import_module(root)
        for name in rest:
            part = getattr(part, name, None)
        if not inspect.ismodule(part) or hasattr(part, item.name):
            return []
        return [Problem(item.line, item.name, f"{item.value} has no attribute {item.name}{near(item.name, dir(part))}")]

    def _call(self, values: list[Any], item: Call) -> Iterator[Problem]:
        if not values or not all(_plainly_called(value) for value in values):
            return
        takes: list[_Takes] = []
        for value in values:
            signatures = value.get_signatures()
            if not signatures:
                return
            # jedi can follow `*args` and `**kwargs` in functions; in methods `super()` may lead anywhere.
            follow = not value.is_class() and not value.is_bound_method()
            takes += [_Takes.of(signature, follow) for signature in signatures]
            live = running(value)
            if live is not None and (taken := _Takes.of_running(live, value)) is not None:
                takes.append(taken)
        for word, line in item.keywords:
            if all(taken.refuses(word) for taken in takes):
                among = {name for taken in takes for name in taken.names}
                yield Problem(line, word, f"{item.called}() has no parameter {word}{near(word, among)}")
        most = [taken.most for taken in takes]
        counts = [count for count in most if count is not None]
        if item.positional is not None and len(counts) == len(most) and item.positional > max(counts):
            limit = f"{max(counts)} positional argument{'s' * (max(counts) != 1)}"
            text = f"takes at most {limit}, but got {item.positional}"
            yield Problem(item.line, item.called.rpartition(".")[2], f"{item.called}() {text}")

    def _import(self, item: Import) -> list[Problem]:
        module = "." * item.level + item.module
        if not self._evidence.module_exists(item.module, item.level, self._path):
            near_by = near(item.module, self._evidence.top_modules()) if "." not in module else ""
            return [Problem(item.line, item.module, f"there is no module named {module}{near_by}")]
        if not item.name:
            return []
        if self._evidence.module_exists(f"{item.module}.{item.name}".strip("."), item.level, self._path):
            return []
        leaf = self._script._module_node.get_leaf_for_position((item.line, item.column))
        values = self._imported_module(leaf)
        if not values or any(has_member(value, item.name) is not False for value in values):
            return []
        among = {name for value in values for name in members(value)}
        return [Problem(item.line, item.name, f"{module} has no name {item.name}{near(item.name, among)}")]

    def _imported_module(self, leaf: Any) -> list[Any]:
        from jedi.inference.imports import Importer

        statement = leaf
        while statement is not None and statement.type != "import_from":
            statement = statement.parent
        if statement is None:
            return []
        context = self._script._get_module_context()
        names = statement.get_from_names()
        return list(Importer(context.inference_state, names, context, statement.level).follow())


def _plainly_called(value: Any) -> bool:
    if value.is_compiled():
        return False  # compiled code does not always expose its parameters
    if value.is_class():
        return closed(value) and not _made_otherwise(value)
    return plain_function(getattr(value, "_original_value", value))


def _made_otherwise(cls: Any) -> bool:
    """Whether a class does not take its arguments in `__init__`: it has `__new__`, or a special base or decorator."""
    names = [each.py__name__() for each in cls.py__mro__()]
    if set(names) & {"Enum", "NamedTuple", "TypedDict", "Protocol", "tuple", "BaseModel", "Structure"}:
        return True
    own = [each for each in cls.py__mro__() if not each.is_compiled() and not each.get_root_context().is_stub()]
    # jedi uses the fields of a dataclass as its parameters even where the class defines its own `__init__`.
    code = [each.tree_node.get_code() for each in own if each.tree_node is not None]
    return any("def __new__" in text for text in code) or (
        any(decorators(each.tree_node) for each in own if each.tree_node is not None)
        and any("def __init__" in text for text in code)
    )


@dataclass(frozen=True)
class _Takes:
    """The arguments that one signature takes; `most`: positional ones (None: any number)."""

    names: frozenset[str]
    most: int | None
    any_keyword: bool

    @classmethod
    def of(cls, signature: Any, follow: bool) -> _Takes:
        plain = cls._made([(p.string_name, p.get_kind()) for p in signature.get_param_names()])
        if not follow:
            return plain
        resolved = signature.get_param_names(resolve_stars=True)
        followed = cls._made([(p.string_name, p.get_kind()) for p in resolved])
        return cls(followed.names | plain.names, plain.most, followed.any_keyword)

    @classmethod
    def of_running(cls, live: Any, value: Any) -> _Takes | None:
        try:
            parameters = list(inspect.signature(live).parameters.values())
        except (ValueError, TypeError):
            return None
        bound = value.is_bound_method() and parameters and not inspect.ismethod(live)
        return cls._made([(p.name, p.kind) for p in (parameters[1:] if bound else parameters)])

    @classmethod
    def _made(cls, parameters: list[tuple[str, Any]]) -> _Takes:
        by_name = (_KINDS.POSITIONAL_OR_KEYWORD, _KINDS.KEYWORD_ONLY)
        places = [name for name, kind in parameters if kind in (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD)]
        kinds = {kind for _, kind in parameters}
        return cls(
            frozenset(name for name, kind in parameters if kind in by_name),
            None if _KINDS.VAR_POSITIONAL in kinds else len(places),
            _KINDS.VAR_KEYWORD in kinds,
        )

    def refuses(self, word: str) -> bool:
        if word in self.names:
            return False
        # `**kwargs` takes anything, but a known parameter with two letters swapped is a typo.
        return not self.any_keyword or any(swapped(word, name) for name in self.names)


def swapped(word: str, name: str) -> bool:
    """Whether the names differ only in two swapped neighbouring letters."""
    if len(word) != len(name) or len(word) < 4 or word == name:
        return False
    apart = [i for i, (a, b) in enumerate(zip(word, name, strict=True)) if a != b]
    return len(apart) == 2 and apart[1] == apart[0] + 1 and word[apart[0]] == name[apart[1]]


def near(name: str, among: Collection[str]) -> str:
    """A remark naming the nearest existing name; empty when none is near."""
    close = difflib.get_close_matches(name, sorted(among), n=1)
    return f" (nearest: {close[0]})" if close else ""
