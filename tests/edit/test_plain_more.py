"""More of what people write without a model: what is taken away, raised, put in fewer words, and asked in parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.editor import Proposal, Refusal, Task, locate, propose
from fulgur.edit.plain import core, read
from fulgur.edit.plain.steps import Steps
from fulgur.edit.refactor.meaning import MEANINGS
from fulgur.edit.region import Region, Target, locate_region, parse_target
from fulgur.edit.unexpressed import unexpressed
from fulgur.text.edit_format import Call

CODE = '''\
import logging

logger = logging.getLogger(__name__)
NAMES = ["a", "b"]


def load(path, mode="r", size=1):
    """Load it.

    Slowly.
    """
    # TODO: faster
    import json

    start = path.name  # noqa: F841
    assert size in (1, 2)
    if not path.exists():
        raise IOError("not found")
    try:
        text = path.read()
    except (OSError, ValueError):
        pass
    if isinstance(text, str):
        logger.warning("read %s", path)
    while len(text) > 0:
        text = text[1:]
    return list(sorted(text))
'''
FUNCTION = CODE[CODE.index("def load") :]
METHOD = "    def f(self, a, b):\n        if a:\n            return max(a)\n        return None\n"

TESTED = "def f(a, i):\n    if a is None:\n        return i\n    if not i:\n        raise ValueError\n    return a\n"
INIT = "    def __init__(self, size):\n        self.size = size\n"
OWNER = "class A(Base):\n    x = 1\n"
TRIED = "try:\n    f()\nexcept Exception:\n    g()\n"

READ: list[tuple[str, str, str | None]] = [
    ("remove the TODO comment", FUNCTION, "remove_comment one TODO"),
    ("drop the noqa comments", FUNCTION, "remove_comment all noqa"),
    ("remove the comment about faster", FUNCTION, "remove_comment one faster"),
    ("remove the pylint comment", FUNCTION, None),
    ("delete the commented-out code", FUNCTION, "remove_dead_code"),
    ("remove 'a' from NAMES", CODE, "remove_item NAMES 'a'"),
    ("remove b from NAMES", CODE, "remove_item NAMES 'b'"),
    ("remove 'c' from NAMES", CODE, None),
    ("unused variable start", FUNCTION, "remove_variable start"),
    ("start is unused, drop it", FUNCTION, "remove_variable start"),
    ("text is unused", FUNCTION, None),
    ("remove @cache", "@cache\ndef f(): ...\n", "remove_decorator cache"),
    ("remove the cache decorator", FUNCTION, None),
    ("raise ValueError instead of the assert", FUNCTION, "assert_to_raise ValueError"),
    ("replace the assert with a ValueError", FUNCTION, "assert_to_raise ValueError"),
    ("raise ValueError instead of the assert", METHOD, None),
    ("include the path in the error message", FUNCTION, "message_with path"),
    ("include the weather in the error message", FUNCTION, None),
    ("the error message should be 'no such file'", FUNCTION, "set_message no such file"),
    ("log at debug level, not warning", FUNCTION, "log_level debug warning"),
    ("use logger.info instead of logger.warning", FUNCTION, "log_level info warning"),
    ("re-raise instead of swallowing the error", FUNCTION, "instead_of_pass raise"),
    ("return None instead of pass", FUNCTION, "instead_of_pass return None"),
    ("re-raise instead of swallowing the error", METHOD, None),
    ("OSError is enough in the except", FUNCTION, "narrow_except OSError"),
    ("reject negative size with a ValueError", FUNCTION, "raise_if size < 0 ValueError"),
    ("reject negative numbers with a ValueError", FUNCTION, None),  # which of three?
    ("raise FileNotFoundError for missing files, not IOError", FUNCTION, "change_exception IOError FileNotFoundError"),
    ("return 0 instead of None when a is empty", METHOD, "change_return 0 None"),
    ("return 0 instead of False when a is empty", METHOD, None),
    ("return 0 instead of None when b is empty", METHOD, None),  # a decides
    ("raise OSError instead of IOError if path is missing", FUNCTION, "change_exception IOError OSError"),
    ("raise E instead of ValueError if a is empty", TESTED, None),  # i decides
    ("raise E instead of ValueError if i is empty", TESTED, "change_exception ValueError E"),
    ("raise OSError instead of IOError if mode is wrong", FUNCTION, None),  # path decides
    ("use contextlib.suppress instead of try/except/pass", FUNCTION, "use_suppress"),
    ("while text is enough", FUNCTION, "replace_text while len(text) > 0 while text"),
    ("while path is enough", FUNCTION, None),
    ("sorted already returns a list", FUNCTION, "unwrap_call list sorted"),
    ("len already returns a list", FUNCTION, None),
    ("also accept bytes", FUNCTION, "accept_type bytes"),
    ("support bytes as well as strings", FUNCTION, "accept_type bytes str"),
    ("also accept weather", FUNCTION, None),
    ("move the json import to the top", FUNCTION, "import_to_top json"),
    ("import json at module level", FUNCTION, "import_to_top json"),
    ("move the yaml import to the top", FUNCTION, None),
    ("turn the hard-coded 0 into a parameter least", FUNCTION, "extract_parameter 0 least"),
    ("make both args keyword only", METHOD, "keyword_only f a b"),
    ("make both args keyword only", FUNCTION, None),
    ("mode should default to rb", FUNCTION, 'change_default mode "rb"'),
    ("return max(a, default=None)", METHOD, "only_return max(a, default=None)"),
    ("make it a one-liner", METHOD, "use_ternary"),
    ("the param should be called items, not a", METHOD, "rename a items"),
    ("make it a static method", METHOD, "make_static"),
    ("make it a static method", FUNCTION, None),
    ("IOError -> OSError", FUNCTION, "change_exception IOError OSError"),
    ("wrap path.name in str()", FUNCTION, "wrap_value str path.name"),
    ("annotate the return type, it returns nothing", "def f():\n    g()\n", "annotate_return None"),
    ("annotate the return type, it returns nothing", FUNCTION, None),
    ("the return type is Optional", "def f() -> int:\n    return 1\n", "annotate_return Optional[int]"),
    ("the return type is Optional", FUNCTION, None),
    ("add a comment above the loop: 'twice'", FUNCTION, None),  # one word, and no loop
    ("add a TODO: handle bytes", FUNCTION, "add_comment TODO: handle bytes"),
    ("drop the TODO", FUNCTION, "remove_comment one todo"),
    ("remove the pylint", FUNCTION, None),
    ("remove the comment after start", FUNCTION, "remove_comment one noqa F841"),
    ("drop both comments", FUNCTION, "remove_comments"),
    ("drop both comments", METHOD, None),
    ("typo: 'Slowly' should be 'Quickly'", FUNCTION, "replace_text Slowly Quickly"),
    ("annotate text as str", FUNCTION, "annotate_variable text str"),
    ("path is a str or bytes", FUNCTION, "annotate path Union[str, bytes]"),
    ("strip the mode first", FUNCTION, "first_call mode strip"),
    ("strip the weather first", FUNCTION, None),
    ("wrap the return value in tuple()", FUNCTION, "wrap_return tuple"),
    ("return a tuple instead of a list", FUNCTION, "wrap_return tuple"),
    ("return a tuple", METHOD, None),
    ("remove the try/except", FUNCTION, "remove_try"),
    ("remove the try/except", METHOD, None),
    ("swap the args of len", METHOD, None),
    ("size must be at least 1 otherwise ValueError", FUNCTION, "raise_if size < 1 ValueError"),
    ("make LIMIT a parameter limit", FUNCTION, None),
    ("return 1 for None", "def f(a):\n    if a is None:\n        return 0\n    return a\n", "guard_none a return 1"),
    ("use | None instead of Union", FUNCTION, "optional_union"),
    ("elif -> if", FUNCTION, None),
    ("use >= instead of >", FUNCTION, "change_operator > >="),
    ("use <= instead of <", FUNCTION, None),
    ("change the docstring to 'Load it all.'", FUNCTION, "set_docstring Load it all."),
    ("except Exception is too broad, catch OSError", TRIED, "narrow_except OSError"),
    ("except Exception is too broad, catch OSError", METHOD, None),
    ("add an argument called key, default None", FUNCTION, "new_parameter key=None"),
    ("accept a key argument (default None)", FUNCTION, "new_parameter key=None"),
    ("return an empty list instead of None", METHOD, "change_return [] None"),
    ("make NAMES a tuple", CODE, "literal_kind NAMES tuple"),
    ("pass mode=mode to path.read", FUNCTION, "add_keyword path.read mode mode"),
    ("pass size to path.read", FUNCTION, None),  # nobody knows what it takes
    ("add a parameter key=None and store it", INIT, "new_parameter key=None, store_parameter key key"),
    ("make size private", INIT, None),  # the attribute, or the parameter?
    ("inherit from Other", OWNER, None),  # instead of Base, or beside it?
    ("drop the Base", OWNER, "remove_base A Base"),
    ("type hints: mode is str, size is int", FUNCTION, "add_type_hints mode: str, size: int"),
    ("size is confusing, rename it to count", FUNCTION, "rename size count"),
    ("unused arg mode, prefix it with an underscore", FUNCTION, "rename mode _mode"),
    ("the docstring says Slowly. but it should be Quickly.", FUNCTION, "replace_text Slowly. Quickly."),
    ("remove the cache", "@cache\ndef f(): ...\n", "remove_decorator cache"),
    ("remove the cache", "@cache\ndef f():\n    return cache\n", None),
    ("always return None", "def f(a):\n    return a\n", "change_return None a"),
    ("always return None", METHOD, None),
    ("size must be positive, ValueError otherwise", FUNCTION, "raise_if size <= 0 ValueError"),
    ("make the 1 a class constant FIRST", FUNCTION, None),
    ("use > 1 instead of > 0", FUNCTION, "replace_text > 0 > 1"),
    ("Slowly -> Quickly", FUNCTION, "replace_text Slowly Quickly"),
    ("typo: Slolwy", FUNCTION.replace("Slowly", "Slolwy") + "# Slowly\n", "replace_text Slolwy Slowly"),
    ("typo: Slolwy", FUNCTION, None),
    ("OSError instead", FUNCTION, "change_exception IOError OSError"),
    ("text: str", FUNCTION, "annotate_variable text str"),
    ("no str() needed in the f-string", FUNCTION, "plain_placeholders"),
    ("the lambda is pointless", FUNCTION, "unwrap_lambda"),
    ('remove the comment "TODO: faster"', FUNCTION, "remove_comment one TODO: faster"),
    ("return a set", "def f(a) -> list:\n    return g(a)\n", None),
    ("return None for empty strings", "def f(string):\n    return string\n", None),
    ("use path.a or path.b instead of path.read", FUNCTION, None),
    ("use a + b instead of path.name", "def f(a, b):\n    return 2 * path.name\n", None),
    ("name -> title", 'def f(a):\n    """Its name."""\n    return a["name"]\n', "replace_text name title"),
    ("Slowly -> Quickly in the docstring", FUNCTION, "replace_text Slowly Quickly"),
    ("text -> data in the docstring", FUNCTION, None),
    ("size: int = 2", FUNCTION, "annotate size int, change_default size 2"),
    ("size: int = 1", FUNCTION, "annotate size int"),
    ("a = dict(b)", "def f(b):\n    a = {}\n    for c in b:\n        a[c] = 1\n    return a\n", None),
    # reasons and judgements
    ("remove the TODO comment, the issue is closed", FUNCTION, "remove_comment one TODO"),
    ("type comparisons are bad, use isinstance", FUNCTION, "use_isinstance"),
    ("mode should be 'rb', the default is wrong", FUNCTION, None),
    # in parts
    ("rename text to data and start to begin", FUNCTION, "rename text data, rename start begin"),
    ("rename text, start to data, begin", FUNCTION, "rename text data, rename start begin"),
    ("remove the TODO comment and rename text to data", FUNCTION, "remove_comment one TODO, rename text data"),
    ("rename text to data and sort it", FUNCTION, None),
    ("add a parameter least=0 and use it instead of 0", FUNCTION, "extract_parameter 0 least"),
    ("add a parameter least=1 and use it instead of 0", FUNCTION, None),
    ("add a parameter key=None and pass it to sorted", FUNCTION, "new_parameter key=None, add_keyword sorted key key"),
]


def region_of(text: str, file: str) -> Region:
    start = max(file.find(text), 0)
    return Region(start, start + len(text), "", text, "", 1, text.count("\n"))


@pytest.mark.parametrize(("instruction", "text", "wanted"), READ, ids=[f"{n}-{c[0]}" for n, c in enumerate(READ)])
def test_it_is_read(instruction: str, text: str, wanted: str | None) -> None:
    file = CODE if text in CODE else text
    call = read(instruction, region_of(text, file), file)
    parts = [one for _, one in call.parts] if isinstance(call, Steps) else [call] if call else []
    assert all(one.name in MEANINGS for one in parts)
    assert (", ".join(" ".join((one.name, *one.args)) for one in parts) or None) == wanted


def test_the_name_of_the_place_may_be_something_to_do() -> None:
    region = "def escape(s):\n    return s\n"
    assert unexpressed(Call("quotes", ("single",)), "also escape single quotes", region) == "escape"
    assert unexpressed(Call("quotes", ("single",)), "use single quotes in escape", region) is None
    assert unexpressed(Call("annotate_return", ("dict",)), "return a dict", region) == "return"
    assert unexpressed(Call("annotate_return", ("dict",)), "annotate the return as dict", region) is None
    indexed = 'def add_index(self, name="Index"):\n    pass\n'
    assert (
        unexpressed(Call("new_parameter", ("start=1",)), "start the index at a param start=1", indexed, ["Index"])
        == "index"
    )
    constant = Call("extract_constant", ("4", "SIZE"))
    assert unexpressed(constant, "make the 4 a class constant SIZE", region) == "class"


def test_what_says_how_it_is_to_be_is_no_reason() -> None:
    for said in ("add a limit, the default is 5", "raise KeyError, not ValueError", "x is bad, y is better"):
        assert core(said) == said
    for said in (
        "rename a to b, it is bad. c too -> d",
        "flip the if so we return early",
        "drop a, it is old. Rename b to c",
    ):
        assert core(said) == said
    assert core("rename a to b, it says nothing. nobody reads it") == "rename a to b"
    assert core("rename a to b so we can read it") == "rename a to b"
    assert core("drop the elifs, every branch returns anyway") == "drop the elifs"
    assert core("from None, the KeyError is noise") == "from None"


FILES = {
    "shop.py": """\
class Shop:
    def __init__(self, name, size):
        self.name = name
        self.size = size

    def sell(self, item, count):
        def price(x):
            return x * 2

        if count:
            kind = "some"
        else:
            kind = "none"
        if item:
            label = kind
        else:
            label = "nothing"
        return label
""",
    "main.py": "from shop import Shop\n\nShop(name='a', size=1).sell(item=1, count=2)\n",
}


def task(project: Path, at: str, say: str) -> Task:
    return locate(parse_target(at, project), say)


def proposed(project: Path, at: str, say: str) -> Proposal:
    asked = task(project, at, say)
    call = asked.spelled_out()
    assert call is not None
    result = propose(asked, call)
    assert isinstance(result, Proposal), result.reason
    return result


def test_parts_are_followed_into_other_files(project: Path) -> None:
    result = proposed(project, "shop.py:Shop.sell", "rename item to thing and count to number")
    assert "def sell(self, thing, number):" in result.text and "if number:" in result.text
    [(other, text)] = result.others
    assert other.path.name == "main.py" and "sell(thing=1, number=2)" in text
    assert result.understood == "rename item to thing, then rename count to number"


def test_parts_that_cannot_follow_each_other_are_refused(project: Path) -> None:
    asked = task(project, "shop.py:Shop", "rename sell to trade and Shop to Store")
    call = asked.spelled_out()
    result = propose(asked, call) if call is not None else None
    assert isinstance(result, Refusal) and "separately" in result.reason


def test_one_of_several_places_is_picked_by_a_name(project: Path) -> None:
    result = proposed(project, "shop.py:Shop.sell", "use a ternary for label")
    assert 'label = kind if item else "nothing"' in result.text and 'kind = "none"' in result.text
    asked = task(project, "shop.py:Shop.sell", "use a ternary")
    refused = propose(asked, Call("use_ternary"))
    assert isinstance(refused, Refusal) and "more than one" in refused.reason


def test_the_first_of_several_places(project: Path) -> None:
    asked = task(project, "shop.py:Shop.sell", "use a ternary for the first if")
    result = propose(asked, Call("use_ternary"))
    assert isinstance(result, Proposal) and 'kind = "some" if count else "none"' in result.text


def test_an_instruction_names_the_function_inside(project: Path) -> None:
    text = FILES["shop.py"]
    for say, first in (("annotate x as int in price", 7), ("add -> None to the constructor", 2)):
        assert locate_region(text, Target(Path("shop.py"), "Shop"), say).first_line == first
    assert locate_region(text, Target(Path("shop.py"), "Shop"), "rename price to cost").first_line == 1
    assert "def price(x: int):" in proposed(project, "shop.py:Shop", "annotate x as int in price").text


def test_a_long_docstring_is_not_shown_to_a_model(project: Path) -> None:
    lines = "".join(f"    line {n}\n" for n in range(70))
    (project / "long.py").write_text(f'def f(a):\n    """First line.\n\n{lines}    """\n    return a\n')
    asked = task(project, "long.py:f", "do something that no rule knows")
    assert asked.item()["region"] == 'def f(a):\n    """First line."""\n    return a\n'
    assert asked.region.text.count("line") == 71
    assert isinstance(propose(asked, "def f(b):\n    return b\n<|end|>"), Refusal)
    result = propose(asked, Call("annotate", ("a", "int")))
    assert isinstance(result, Proposal) and "def f(a: int):" in result.text and "line 69" in result.text


def test_an_annotation_that_nobody_evaluates_needs_its_name(project: Path) -> None:
    (project / "late.py").write_text("from __future__ import annotations\n\n\ndef f(a):\n    return a\n")
    assert "import Callable" in proposed(project, "late.py:f", "annotate a as Callable").text
    asked = task(project, "late.py:f", "annotate a as Frob")
    result = propose(asked, Call("annotate", ("a", "Frob")))
    assert isinstance(result, Refusal) and "Frob" in result.reason


def test_a_method_that_is_handed_an_object_stays_one(project: Path) -> None:
    (project / "a.py").write_text("class A:\n    def f(self, b):\n        return b\n")
    assert "@staticmethod\n    def f(b):" in proposed(project, "a.py:A.f", "make it a static method").text
    (project / "b.py").write_text("from a import A\n\nA.f(A(), 1)\n")
    result = propose(task(project, "a.py:A.f", "make it a static method"), Call("make_static"))
    assert isinstance(result, Refusal) and "b.py:3" in result.reason
