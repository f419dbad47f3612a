"""The deterministic refactorings: exact results on hand-written files, refusals, and round trips on real ones."""

from __future__ import annotations

import ast
import random
import sysconfig
from pathlib import Path
from textwrap import dedent

import pytest

from fulgur.edit.refactor import CALLS, RefactorError, apply_call
from fulgur.edit.refactor.scopes import Names
from fulgur.edit.refactor.source import Source
from fulgur.text.edit_format import Call, parse_call


def call(text: str, words: str, at: tuple[int, int] | None = None) -> str:
    parsed = parse_call(words)
    assert parsed is not None
    return apply_call(dedent(text), parsed, at)


CASES = {
    "a function that nothing uses": (
        "delete_symbol old",
        """\
        def kept():
            return 1


        def old(a):
            return old(a - 1)


        x = kept()
        """,
        """\
        def kept():
            return 1


        x = kept()
        """,
    ),
    "a name of an import over several lines": (
        "remove_import b",
        """\
        from m import (
            a,
            b,
        )
        """,
        """\
        from m import (
            a,
        )
        """,
    ),
    "a tuple as a constant": (
        "extract_constant (1, 2) PAIR",
        """\
        import m

        def f(a):
            return a in (1, 2)
        """,
        """\
        import m

        PAIR = (1, 2)

        def f(a):
            return a in PAIR
        """,
    ),
    "module function and its uses": (
        "rename load read",
        """\
        __all__ = ["load"]

        def load(path):
            load_count = 1
            return load(path.load)  # load stays here

        class A:
            def load(self):
                return load(self)
        """,
        """\
        __all__ = ["read"]

        def read(path):
            load_count = 1
            return read(path.load)  # load stays here

        class A:
            def load(self):
                return read(self)
        """,
    ),
    "shadowed names are left alone": (
        "rename data items",
        """\
        data = [1]

        def f(data):
            return data

        def g():
            global data
            data = [x for x in data]
            return f(data=data)
        """,
        """\
        items = [1]

        def f(data):
            return data

        def g():
            global items
            items = [x for x in items]
            return f(data=items)
        """,
    ),
    "inside f-strings and comprehensions": (
        "rename name title",
        """\
        name = "x"
        text = f"{name!r} is name {name:>{len(name)}}"
        parts = [name for name in name]
        """,
        """\
        title = "x"
        text = f"{title!r} is name {title:>{len(title)}}"
        parts = [name for name in title]
        """,
    ),
    "a name imported from a module": (
        "rename join connect",
        "from os.path import join\n\nprint(join('a'))\n",
        "from os.path import join as connect\n\nprint(connect('a'))\n",
    ),
    "a method with self, cls and subclasses": (
        "rename Base.run start",
        """\
        class Base:
            def run(self):
                return self.run

        class Child(Base):
            def run(self):
                return super().run() + Base.run(self)

        class Other:
            def run(self):
                return self.run()
        """,
        """\
        class Base:
            def start(self):
                return self.start

        class Child(Base):
            def start(self):
                return super().start() + Base.start(self)

        class Other:
            def run(self):
                return self.run()
        """,
    ),
    "a parameter and the keywords of its callers": (
        "rename_parameter send url address",
        """\
        def send(url, retries=1):
            check = lambda: url
            return [url for _ in range(retries)]

        send("a")
        send(url="b", retries=2)
        other(url="c")
        """,
        """\
        def send(address, retries=1):
            check = lambda: address
            return [address for _ in range(retries)]

        send("a")
        send(address="b", retries=2)
        other(url="c")
        """,
    ),
    "a new parameter passed by every caller": (
        "add_parameter send timeout 30",
        """\
        def send(url):
            return url

        send("a")
        send(
            "b",
        )
        x.send("c")
        """,
        """\
        def send(url, timeout):
            return url

        send("a", timeout=30)
        send(
            "b",
            timeout=30,
        )
        x.send("c")
        """,
    ),
    "a new parameter with a default": (
        "add_parameter f a=1",
        "def f():\n    pass\n\nf()\n",
        "def f(a=1):\n    pass\n\nf()\n",
    ),
    "a required parameter after defaults is a keyword": (
        "add_parameter f b 2",
        "def f(a=1):\n    pass\n\nf(3)\n",
        "def f(a=1, *, b):\n    pass\n\nf(3, b=2)\n",
    ),
    "a parameter removed from a method and its calls": (
        "remove_parameter Store.add note",
        """\
        class Store:
            def add(self, item, note: str = "", count=1):
                return item * count

            def all(self):
                self.add(1, "x", 2)
                self.add(1, note="y")
                self.add(1, count=3)
        """,
        """\
        class Store:
            def add(self, item, count=1):
                return item * count

            def all(self):
                self.add(1, 2)
                self.add(1)
                self.add(1, count=3)
        """,
    ),
    "positional arguments become keywords": (
        "use_keywords box",
        "def box(width, height=1):\n    pass\n\nbox(1, 2)\nbox(3, height=4)\n",
        "def box(width, height=1):\n    pass\n\nbox(width=1, height=2)\nbox(width=3, height=4)\n",
    ),
    "a parameter by name alone, with its calls": (
        "keyword_only box height",
        "def box(width, height=1):\n    pass\n\nbox(1, 2)\nbox(3, height=4)\n",
        "def box(width, *, height=1):\n    pass\n\nbox(1, height=2)\nbox(3, height=4)\n",
    ),
    "a variable as a constant": (
        "extract_constant table NAMES",
        "import os\n\n\ndef f(key):\n    table = {\n        1: 'a',\n    }\n    return table[key]\n",
        "import os\n\nNAMES = {\n    1: 'a',\n}\n\n\ndef f(key):\n    return NAMES[key]\n",
    ),
    "a constant below the imports": (
        "extract_constant 30 TIMEOUT",
        '"""Doc, 30."""\n\nimport os\n\n\ndef f():\n    return wait(30) + 30.0\n',
        '"""Doc, 30."""\n\nimport os\n\nTIMEOUT = 30\n\n\ndef f():\n    return wait(TIMEOUT) + 30.0\n',
    ),
    "an import where it sorts": (
        "add_import import json",
        "import io\nimport os\n\nimport numpy\n",
        "import io\nimport json\nimport os\n\nimport numpy\n",
    ),
    "the first import of its kind": (
        "add_import from pathlib import Path",
        '"""Doc."""\n\nimport numpy\n',
        '"""Doc."""\n\nfrom pathlib import Path\n\nimport numpy\n',
    ),
    "an import in a file without any": ("add_import import os", "x = 1\n", "import os\n\nx = 1\n"),
    "one name of an import": (
        "remove_import Any",
        "from typing import Any, List\n\nx: List\n",
        "from typing import List\n\nx: List\n",
    ),
    "imports nobody uses": (
        "remove_unused_imports",
        "import os\nimport re\nfrom a import b, c\n\n__all__ = ['c']\nre.match\n",
        "import re\nfrom a import c\n\n__all__ = ['c']\nre.match\n",
    ),
    "imports in order": (
        "sort_imports",
        "from b import c\nimport os\nimport io\n\nimport z\nimport y\n",
        "import io\nimport os\nfrom b import c\n\nimport y\nimport z\n",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_exact_results(name: str) -> None:
    words, before, after = CASES[name]
    assert call(before, words) == dedent(after)


REFUSED = {
    "a name that is taken": ("rename a b", "a = 1\nb = 2\n"),
    "a name a function would hide": ("rename a b", "a = 1\ndef f(b):\n    return a + b\n"),
    "a builtin that is used": ("rename a len", "a = 1\nlen('x')\n"),
    "a keyword": ("rename a class", "a = 1\n"),
    "a name that is not there": ("rename zebra b", "a = 1\n"),
    "a parameter still in use": ("remove_parameter f x", "def f(x):\n    return x\n"),
    "a call with a star": ("remove_parameter f x", "def f(x):\n    pass\nf(*args)\n"),
    "two methods of one name": (
        "rename run go",
        "class A:\n    def run(self): ...\nclass B:\n    def run(self): ...\n",
    ),
    "an unknown refactoring": ("explode it", "a = 1\n"),
    "too few arguments": ("rename a", "a = 1\n"),
    "a file that does not parse": ("rename a b", "a = (\n"),
    "sorted imports": ("sort_imports", "import a\nimport b\n"),
    "an import that is there": ("add_import import os", "import os\n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str) -> None:
    words, text = REFUSED[name]
    with pytest.raises(RefactorError):
        call(text, words)


def test_the_region_chooses_among_methods() -> None:
    text = "class A:\n    def run(self): ...\nclass B:\n    def run(self): ...\n"
    at = (text.index("class B"), len(text))
    assert apply_call(text, Call("rename", ("run", "go")), at) == text[: at[0]] + "class B:\n    def go(self): ...\n"


def test_every_call_has_a_case() -> None:
    # test_extract.py, test_refactor_more.py, test_refactor_idioms.py
    elsewhere = {"extract_function", "import_to_top", "split_imports"}
    assert {words.split()[0] for words, _, _ in CASES.values()} == set(CALLS) - elsewhere


def test_renaming_there_and_back_restores_real_files() -> None:
    """Over the standard library: the tree changes only in that name, and the way back gives the same bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    done = 0
    for path in random.Random(11).sample(files, 40):
        text = path.read_text(encoding="utf-8")
        try:
            bound = sorted(Names(Source(text)).module.bound)
        except Exception as error:
            pytest.fail(f"{path.name}: {error}")
        for name in random.Random(path.name).sample(bound, min(4, len(bound))):
            try:
                there = apply_call(text, Call("rename", (name, "quite_another_name")))
            except RefactorError:
                continue
            if f" as {'quite_another_name'}" in there:
                continue
            assert apply_call(there, Call("rename", ("quite_another_name", name))) == text
            assert len(list(ast.walk(ast.parse(there)))) == len(list(ast.walk(ast.parse(text))))
            done += 1
    assert done > 40


MANAGER = """\
class Manager:
    def __init__(self):
        self.libs = {}

    def fast(self, name):
        libs = self.get(name)
        self.libs[name] = sorted(libs)

    def get(self, name):
        return self.libs[name]
"""


def test_whoever_names_a_class_means_its_attribute() -> None:
    """Not the variable of a method, nor its parameter, that happens to be called so."""
    after = apply_call(MANAGER, Call("rename", ("libs", "known")), (0, len(MANAGER)))
    assert after == MANAGER.replace("self.libs", "self.known")
    named = MANAGER.replace("def get(self, name)", "def get(self, libs)").replace("libs = self.get(name)", "pass")
    after = apply_call(named, Call("rename", ("libs", "known")), (0, len(named)))
    assert after == named.replace("self.libs", "self.known")
    function = MANAGER.index("    def fast"), MANAGER.index("    def get")
    after = apply_call(MANAGER, Call("rename", ("libs", "known")), function)
    assert after == MANAGER.replace("    libs =", "    known =").replace("sorted(libs)", "sorted(known)")
