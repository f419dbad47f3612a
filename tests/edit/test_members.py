# ruff: noqa: E501 (tables of sources read better with one a line)
"""What an edit introduces and does not exist is found; what exists, or cannot be known, is left alone."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from fulgur.edit.checks.members.introduced import introduced
from fulgur.edit.checks.members.process import MemberCheck
from fulgur.sandbox.policy import Policy

HELPER = """
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


def load(path, *, strict=False):
    return path


class Store:
    limit = 3

    def __init__(self, size: int) -> None:
        self.size = size

    def get(self, key: str, default: int = 0) -> int:
        return default

    @property
    def full(self) -> bool:
        return True

    @classmethod
    def make(cls, size: int) -> "Store":
        return cls(size)

    @staticmethod
    def check(value: int) -> bool:
        return True


class Deep(Store):
    def deeper(self) -> "Deep":
        return self


@dataclass
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: int
    right: int


class Colour(Enum):
    RED = 1
    BLUE = 2


class Open:
    def __getattr__(self, name):
        return name
"""

UNKNOWN = {
    "module": ("import nosuchmodule_x", "there is no module named nosuchmodule_x"),
    "module misspelt": ("import jsno", "there is no module named jsno (nearest: json)"),
    "submodule": ("import os.paht", "there is no module named os.paht"),
    "part of a package": ("from pkg.innr import a", "there is no module named pkg.innr"),
    "relative": ("from .nothere import a", "there is no module named .nothere"),
    "name": ("from helper import lod", "helper has no name lod (nearest: load)"),
    "library name": ("from json import lods", "json has no name lods (nearest: loads)"),
    "third party name": ("from msgspec import Strct", "msgspec has no name Strct (nearest: Struct)"),
    "relative name": ("from .helper import Stroe", ".helper has no name Stroe (nearest: Store)"),
    "module attribute": ("import helper\nhelper.laod(1)", "helper has no attribute laod (nearest: load)"),
    "library attribute": ("import os\nos.getcwdd()", "os has no attribute getcwdd (nearest: getcwd)"),
    "library part": ("import os\nos.path.exits('a')", "os.path has no attribute exits (nearest: exists)"),
    "third party attribute": ("import pathspec\npathspec.PathSpc()", "pathspec has no attribute PathSpc (nearest: PathSpec)"),
    "library object": ("from pathlib import Path\nPath('a').read_txt()", "Path('a') has no attribute read_txt (nearest: read_text)"),
    "annotated parameter": ("from pathlib import Path\ndef f(p: Path):\n    return p.exits()", "p has no attribute exits (nearest: exists)"),
    "string": ("'a b'.splt()", "'a b' has no attribute splt (nearest: split)"),
    "list": ("items = [1]\nitems.push(2)", "items has no attribute push"),
    "dict": ("items = {'a': 1}\nitems.has_key('a')", "items has no attribute has_key"),
    "file": ("file = open('a')\nfile.readln()", "file has no attribute readln (nearest: readline)"),
    "self": ("class A:\n    def __init__(self):\n        self.count = 0\n    def f(self):\n        return self.conut", "self has no attribute conut (nearest: count)"),
    "self by a base": ("from helper import Store\nclass A(Store):\n    def f(self):\n        return self.siez", "self has no attribute siez (nearest: size)"),
    "object": ("from helper import Store\ns = Store(1)\ns.gett('a')", "s has no attribute gett (nearest: get)"),
    "returned object": ("from helper import Store\nStore.make(1).ful", "Store.make(1) has no attribute ful (nearest: full)"),
    "chain": ("from helper import Deep\nDeep(1).deeper().depper()", "Deep(1).deeper() has no attribute depper (nearest: deeper)"),
    "class": ("from helper import Store\nStore.mke(1)", "Store has no attribute mke (nearest: make)"),
    "dataclass": ("from helper import Point\nPoint(1).z", "Point(1) has no attribute z"),
    "enum": ("from helper import Colour\nColour.GREN", "Colour has no attribute GREN"),
    "await": ("import asyncio\nasync def f():\n    await asyncio.sleeep(1)", "asyncio has no attribute sleeep (nearest: sleep)"),
    "keyword": ("from helper import load\nload('x', stict=True)", "load() has no parameter stict (nearest: strict)"),
    "keyword of a method": ("from helper import Store\nStore(1).get('a', defalt=2)", "Store(1).get() has no parameter defalt (nearest: default)"),
    "keyword of a class": ("from helper import Store\nStore(1, depth=2)", "Store() has no parameter depth"),
    "keyword of a dataclass": ("from helper import Point\nPoint(x=1, yy=2)", "Point() has no parameter yy"),
    "keyword of the library": ("import shutil\nshutil.copy('a', 'b', follow=True)", "shutil.copy() has no parameter follow"),
    "keyword with letters exchanged": ("import json\njson.dumps(1, indnet=2)", "json.dumps() has no parameter indnet (nearest: indent)"),
    "keyword of a library method": ("from pathlib import Path\nPath('a').write_text('x', encdng='u')", "has no parameter encdng (nearest: encoding)"),
    "too many": ("import helper\nhelper.load(1, 2)", "helper.load() takes at most 1 positional argument, but got 2"),
    "too many for a method": ("from helper import Store\nStore(1).get('a', 1, 2)", "Store(1).get() takes at most 2 positional arguments, but got 3"),
    "too many for a static method": ("from helper import Store\nStore.check(1, 2)", "Store.check() takes at most 1 positional argument, but got 2"),
}  # fmt: skip

FINE = {
    "guarded import": "try:\n    import nosuchmodule_x\nexcept ImportError:\n    nosuchmodule_x = None",
    "declared dependency": "import declared_library",
    "submodule": "import os.path\nos.path.join('a')",
    "package part": "from pkg import inner\ninner.a",
    "relative": "from . import helper\nhelper.load(1)",
    "by version": "import sys\nif sys.version_info >= (3, 99):\n    sys.brand_new()",
    "kwargs": "def f(**k):\n    return k\n\n\nf(a=1)",
    "star": "from helper import load\nargs = (1, 2)\nload(*args)",
    "double star": "from helper import load\noptions = {}\nload('a', **options)",
    "decorated": "import functools\n\n\n@functools.cache\ndef f(a):\n    return a\n\n\nf.cache_clear()\nf(b=1)",
    "unknown decorator": "from declared_library import deco\n\n\n@deco\ndef f(a):\n    return a\n\n\nf(1, 2, 3, b=1)",
    "wrapping decorator": "import functools\ndef deco(g):\n    @functools.wraps(g)\n    def w(*a, **k):\n        return g(*a, **k)\n    return w\n\n\n@deco\ndef f(a):\n    return a\n\n\nf(1, retry=True)",
    "function attribute": "def f():\n    return f.calls\n\n\nf.calls = 0",
    "unknown base": "import declared_library\n\n\nclass A(declared_library.B):\n    def f(self):\n        return self.whatever",
    "known base": "from helper import Deep\nDeep(1).size\nDeep(1).limit\nDeep(1).full",
    "library base": "import threading\n\n\nclass A(threading.Thread):\n    def f(self):\n        return self.name, self.daemon",
    "set elsewhere": "class A:\n    def f(self):\n        self.x = 1\n\n    def g(self):\n        return self.x",
    "set by setattr": "class A:\n    def __init__(self, **k):\n        for n, v in k.items():\n            setattr(self, n, v)\n\n    def g(self):\n        return self.x",
    "getattr": "from helper import Open\nOpen().anything\nOpen().other",
    "slots": "class A:\n    __slots__ = ('x',)\n    def f(self):\n        return self.x",
    "rebound": "import math\n\n\ndef f(math):\n    return math.nothing",
    "untyped parameter": "def f(a, b=None, c=0):\n    return a.x, b.y, c.z",
    "narrowed": "def f(a: object):\n    if isinstance(a, str):\n        return a.upper()\n    return a.whatever",
    "matched": "def f(a: int | str):\n    match a:\n        case str():\n            return a.upper()",
    "either": "def f(o):\n    x = o or {}\n    return x.items_of()",
    "one of two": "import random\nfrom helper import Store\ndef f(o):\n    x = Store(1)\n    if random.random() > 0.5:\n        x = o\n    return x.whatever",
    "none at first": "from helper import Store\nclass A:\n    def __init__(self):\n        self.s = None\n    def f(self):\n        self.s = Store(1)\n        return self.s.size",
    "dataclass": "from helper import Point\nPoint(x=1, y=2).x\nPoint(1, 2).y\nPoint.__dataclass_fields__",
    "dataclass with its own start": "import dataclasses\n\n\n@dataclasses.dataclass\nclass A:\n    x: int\n\n    def __init__(self, text, *, deep=False):\n        self.x = 1\n\n\nA('a', deep=True).x",
    "replaced": "import dataclasses\nfrom helper import Point\ndataclasses.replace(Point(1), y=3).x",
    "named tuple": "from helper import Pair\nPair(left=1, right=2)._replace(left=2).right\nPair(1, 2).count(1)",
    "collections' named tuple": "from collections import namedtuple\nP = namedtuple('P', 'x y')\nP(x=1, y=2).x",
    "enum": "from helper import Colour\nColour.RED.value\nColour.BLUE.name\nColour(1)\nColour['RED']\n[c.name for c in Colour]\nColour.__members__",
    "property": "from helper import Store\nStore(1).full.real",
    "class method": "from helper import Store\nStore.make(1).get('a', default=2)\nStore.make(size=2)\nStore.check(value=1)",
    "fixtures": "import pytest\n\n\n@pytest.fixture\ndef thing(request):\n    return request.param\n\n\ndef test_a(thing, tmp_path, monkeypatch, capsys):\n    thing.whatever\n    (tmp_path / 'a').write_text('x')\n    monkeypatch.setattr('a.b', 1)\n    capsys.readouterr().out",
    "monkeypatching": "import helper\nhelper.extra = lambda: 1\nhelper.extra()",
    "super": "from helper import Store\nclass A(Store):\n    def __init__(self, size, more):\n        super().__init__(size)\n        self.more = more\n    def get(self, key, default=0):\n        return super().get(key, default=default)\nA(1, more=2).more",
    "generics": "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass Box(Generic[T]):\n    def __init__(self, item: T) -> None:\n        self.item = item\n    def map(self, f) -> 'Box[T]':\n        return Box(f(self.item))\nBox(1).map(str).item\nBox[int](3).item",
    "protocol": "from typing import Protocol\nclass Named(Protocol):\n    name: str\ndef f(n: Named):\n    return n.name",
    "async": "import asyncio\nasync def f():\n    async with asyncio.TaskGroup() as group:\n        group.create_task(asyncio.sleep(0), name='x')\n    async with asyncio.timeout(1):\n        pass\n    return await asyncio.to_thread(print, 1, sep='')",
    "context manager": "import contextlib\n@contextlib.contextmanager\ndef opened():\n    yield open('a')\nwith opened() as f:\n    f.read()",
    "partial": "import functools\nfrom helper import load\nfunctools.partial(load, strict=True)('a')\nfunctools.partial(load, strict=True).func",
    "overloads": "max([1], default=3)\nmax(1, 2, 3, key=abs)\nint('3', base=10)\nint('3', 16)\nprint(1, 2, sep='', flush=True)\nsorted([1], key=abs, reverse=True)\nopen('a', 'w', encoding='utf-8', newline='')\ndict(a=1, b=2)",
    "subprocess": "import subprocess\nsubprocess.run(['a'], check=True, capture_output=True, text=True, cwd='.').stdout.strip()\nsubprocess.Popen(['a'], start_new_session=True, pass_fds=(1,)).wait(timeout=3)",
    "argparse": "import argparse\np = argparse.ArgumentParser()\np.add_argument('-x', type=int, default=3, help='x')\na = p.parse_args()\na.x\na.anything",
    "library of another Python": "import sys\nif sys.version_info >= (3, 99):\n    import annotationlib\n\n\ndef f():\n    return annotationlib.get_annotations",
    "new library names": "import datetime\nimport itertools\nimport tomllib\ndatetime.UTC\ntomllib.loads('')\nitertools.pairwise([])",
    "regular expressions": "import re\nm = re.match('a', 'a')\nif m:\n    m.group(1).strip()\n    m['x'].lower()",
    "numpy": "import numpy as np\na = np.zeros((2, 3), dtype=np.float32)\na.T.reshape(-1).sum(axis=0, keepdims=True)\nnp.random.default_rng(1).integers(0, 3, size=4)",
    "strings side by side": "'{} '  '{} {}'.format(1, 2, 3)\nprint('a'\n      'b'.format(1, 2, 3))",
    "unicode before": "x = 'ääöü😀'; y = [x]; y.append('é'); x.upper().lower()",
    "brackets": "(\n    'a'\n    .upper()\n    .lower(\n    )\n)",
    "lambda": "f = lambda *a, **k: (a, k)\nf(1, 2, x=3)",
    "class attribute set later": "class A:\n    pass\n\n\nA.extra = 1\nA().extra\nA.extra",
    "mixin": "class Mixin:\n    def f(self):\n        return self.given()\n\n\nclass Whole(Mixin):\n    def given(self):\n        return 1",
    "type checker told off": "import os\nos.nothing_like_this()  # type: ignore[attr-defined]",
    "loop": "import pathlib\nfor path in pathlib.Path('.').rglob('*'):\n    path.relative_to('.').as_posix().split('/')",
    "mock": "from unittest import mock\nm = mock.Mock(spec=str)\nm.anything.return_value = 3\nmock.patch.object(str, 'x', create=True)",
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "helper.py").write_text(HELPER)
    (folder / "pkg").mkdir()
    (folder / "pkg/__init__.py").write_text("")
    (folder / "pkg/inner.py").write_text("a = 1\n")
    (folder / "pyproject.toml").write_text('[project]\ndependencies = ["declared-library>=1"]\n')
    return folder


@pytest.fixture(scope="module")
def check(project: Path) -> Iterator[MemberCheck]:
    checker = MemberCheck(Policy.make("workspace-write", project, project / ".fulgur"))
    yield checker
    checker.close()


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_does_not_exist_is_found(name: str, check: MemberCheck, project: Path) -> None:
    source, wanted = UNKNOWN[name]
    checked = check.check(project / "new.py", "", f"{source}\n", 60)
    assert [problem.text for problem in checked.problems if wanted in problem.text], checked
    assert len(checked.problems) == 1 and not checked.unchecked
    assert check.check(project / "new.py", f"{source}\n", f"{source}\n# more\n", 60).problems == []


@pytest.mark.parametrize("name", FINE)
def test_what_exists_or_cannot_be_known_is_left_alone(name: str, check: MemberCheck, project: Path) -> None:
    checked = check.check(project / "new.py", "", f"{FINE[name]}\n", 60)
    assert (checked.problems, checked.unchecked) == ([], "")


def test_the_tables_are_large_enough() -> None:
    assert len(UNKNOWN) >= 20 and len(FINE) >= 20 and len(UNKNOWN) + len(FINE) >= 40


def test_only_what_is_new_is_judged() -> None:
    before = "def f(a):\n    return a.x\n"
    after = "def f(a):\n    b = g(1, k=2)\n    return a.x\n\n\ndef h(a):\n    return a.x\n"
    told = [(item.line, getattr(item, "called", getattr(item, "name", ""))) for item in introduced(before, after)]
    assert told == [(2, "g"), (7, "x")]


def test_the_projects_own_environment_is_used(tmp_path: Path) -> None:
    packages = tmp_path / ".venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "only_here.py").write_text("def f(): ...\n")
    check = MemberCheck(Policy.make("workspace-write", tmp_path, tmp_path / ".fulgur"))
    source = "import only_here\nimport aiohttp\nonly_here.f()\nonly_here.g()\n"
    told = [problem.text for problem in check.check(tmp_path / "a.py", "", source, 60).problems]
    check.close()
    assert told == ["there is no module named aiohttp (nearest: http)", "only_here has no attribute g"]


def test_a_check_that_takes_too_long_says_so(project: Path) -> None:
    check = MemberCheck(Policy.make("workspace-write", project, project / ".fulgur"))
    source = "import asyncio\n" + "".join(f"asyncio.x{number}\n" for number in range(3000))
    checked = check.check(project / "a.py", "", source, 0.05)
    assert "took over 0.05 s" in checked.unchecked
    assert check.check(project / "a.py", "", "import os\nos.getcwdd()\n", 60).problems  # and the next one works
    check.close()


def test_nothing_of_it_is_loaded_at_the_start() -> None:
    import subprocess

    code = "import fulgur.agent.agent, sys; assert 'jedi' not in sys.modules and 'parso' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_process_ends_with_the_session(project: Path) -> None:
    check = MemberCheck(Policy.make("workspace-write", project, project / ".fulgur"))
    check.warm()
    process = check._process
    assert process is not None
    check.close()
    wait_until(lambda: process.poll() is not None)


def test_ending_it_at_its_start_leaves_nothing(tmp_path: Path) -> None:
    """Bubblewrap's second process once stayed when only the first one was killed."""
    for pause in (0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008):
        check = MemberCheck(Policy.make("read-only", tmp_path, tmp_path / "home"))
        check.warm()
        time.sleep(pause)
        check.close()
    wait_until(lambda: not any(str(tmp_path) in line for line in running()))


def running() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended
            continue
