"""Instructions that say exactly what to do, and those that only look so."""

from __future__ import annotations

import pytest

from fulgur.edit.plain import core, read
from fulgur.edit.refactor.meaning import MEANINGS, describe
from fulgur.edit.region import Region
from fulgur.edit.unexpressed import unexpressed
from fulgur.text.edit_format import Call

CODE = '''\
LIMIT = 10
NAMES = ["a"]
DEBUG = False


def load(path, mode="r", limit=None):
    """Load the file."""
    result = open(path, mode)
    if limit == 0:
        raise KeyError(path)
    return result
'''
FUNCTION = CODE[CODE.index("def load") :]
CLASS = "class Shop(object):\n    x = 1\n"


def region(text: str) -> Region:
    return Region(0, len(text), "", text, "", 1, text.count("\n"))


READ: list[tuple[str, str, str]] = [
    ("please rename result to handle, it is clearer", FUNCTION, "rename result handle"),
    ("rename the local variable result -> handle", FUNCTION, "rename result handle"),
    ("result -> handle (pep8)", FUNCTION, "rename result handle"),
    ("s/result/handle/", FUNCTION, "rename result handle"),
    ("result is a bad name, use handle instead", FUNCTION, "rename result handle"),
    ("make load private", FUNCTION, "rename load _load"),
    ("set LIMIT to 20", CODE, "set_value LIMIT 20"),
    ("LIMIT = 20", CODE, "set_value LIMIT 20"),
    ("turn DEBUG on by default", CODE, "set_value DEBUG True"),
    ("add 'b' to NAMES", CODE, "add_item NAMES 'b'"),
    ("default mode should be 'rb'", FUNCTION, "change_default mode 'rb'"),
    ("annotate the return as Any", FUNCTION, "annotate_return Any"),
    ("-> bytes", FUNCTION, "annotate_return bytes"),
    ("path: str", FUNCTION, "annotate path str"),
    ("raise ValueError if limit is negative", FUNCTION, "raise_if limit is not None and limit < 0 ValueError"),
    ("raise ValueError when path is None", FUNCTION, "guard_none path raise ValueError"),
    ("raise OSError instead of KeyError", FUNCTION, "change_exception KeyError OSError"),
    ("raise OSError instead", FUNCTION, "change_exception KeyError OSError"),
    ("replace 'the file' with 'a file'", FUNCTION, "replace_text the file a file"),
    ("typo: Load -> Read", FUNCTION, "replace_text Load Read"),
    ("remove the unused parameter mode", FUNCTION, "remove_parameter load mode"),
    ("add a parameter encoding=None", FUNCTION, "new_parameter encoding=None"),
    ("delete this function, nobody uses it", FUNCTION, "delete_symbol load"),
    ("drop the (object) base", CLASS, "change_base Shop  object"),
    ("add a docstring: Read it.", FUNCTION, "add_docstring Read it."),
    ("remove unused imports", CODE, "remove_unused_imports"),
    ("just return, not return None", "def f():\n    return None\n", "replace_text return None return"),
    ("exit code 1 instead of 2 on errors", "def f():\n    sys.exit(2)\n", "replace_text 2 1"),
    ("if n instead of comparing with 0", "def f(n):\n    if n != 0:\n        g()\n", "replace_text n != 0 n"),
    ("raise KeyError from None in the except", FUNCTION, "raise_from None"),
    (
        "catch OSError instead of KeyError",
        "try:\n    f()\nexcept KeyError:\n    g()\n",
        "replace_text except KeyError except OSError",
    ),
    ("f string instead of % in the regex", FUNCTION, "use_fstring"),
    ("use f-string for the two regexes with sep", FUNCTION, "use_fstring"),
    ("return the instance right from the with, no variable", FUNCTION, "return_directly"),
    ("sum doesnt need a list here, use a generator", FUNCTION, "use_generator"),
    ("move load to io.py", CODE, "move_symbol load io.py"),
    ("move this function into the pkg.io module and update its imports", FUNCTION, "move_symbol load pkg.io"),
    ("move LIMIT to settings", CODE, "move_symbol LIMIT settings"),
    ("make it async", FUNCTION, "make_async"),
    ("make load async and await its callers", FUNCTION, "make_async"),
    ("turn this into a coroutine", FUNCTION, "make_async"),
    ("make load async", CODE, "make_async @load"),
    ("extract this into a function called opened", "    result = open(path, mode)\n", "extract_function opened"),
    (
        "pull these lines out into a helper check()",
        "    if limit == 0:\n        raise KeyError(path)\n",
        "extract_function check",
    ),
    ("extract open(path, mode) into a variable handle", FUNCTION, "extract_variable handle open(path, mode)"),
    ("use an f-string", FUNCTION, "use_fstring"),
    ("get rid of the else, it returns anyway", FUNCTION, "remove_else_return"),
    # other words for a rename
    ("rename to read", FUNCTION, "rename load read"),
    ("name it read_all", FUNCTION, "rename load read_all"),
    ("rename to file", FUNCTION, "rename load file"),  # a word of its docstring, and no name
    ("make it private", FUNCTION, "rename load _load"),
    ("change the name of result to handle", FUNCTION, "rename result handle"),
    ("result is confusing, call it handle", FUNCTION, "rename result handle"),
    ("avoid result, use handle", FUNCTION, "rename result handle"),
    ("change result to result_file", FUNCTION, "rename result result_file"),
    # slips
    ("raname result to handle", FUNCTION, "rename result handle"),
    ("rename reslt to handle", FUNCTION, "rename result handle"),
    # values
    ("mode should be 'rb' by default", FUNCTION, "change_default mode 'rb'"),
    ("use 'rb' mode instead of 'r'", FUNCTION, "change_default mode 'rb'"),
    ("give path a default of None", "def f(path):\n    return path\n", "add_default path None"),
    ("mode and limit keyword only", FUNCTION, "keyword_only load mode limit"),
    ("limit must be passed by keyword only", FUNCTION, None),
    ("force limit to be passed by keyword", FUNCTION, "keyword_only load limit"),
    ("pass limit by keyword only", FUNCTION, "keyword_only load limit"),
    ("pass limit by keyword", FUNCTION, None),  # in a call
    ("error message should be 'no file'", FUNCTION, "set_message no file"),
    ("casefold instead of lower", "def f(s):\n    return s.lower()\n", "replace_text .lower( .casefold("),
    ("drop .strip()", "def f(s):\n    return s.strip()\n", "replace_text .strip() "),
    ("no list() around the split", "def f(s):\n    return list(s.split())\n", "unwrap_call list split"),
    ("delete the line x = 1", "def f():\n    x = 1\n    return 2\n", "delete_statement x = 1"),
    ("limit is unused, remove it", "def f(a, limit):\n    return a\n", "remove_parameter f limit"),
    ("no result, return directly", "def f(a):\n    result = a\n    return result\n", "return_directly result"),
    ("return x * 3", "def f(x):\n    return x * 2\n", "change_return x * 3 x * 2"),
    ("introduce a constant ZERO for 0", FUNCTION, "extract_constant 0 ZERO"),
    ("path: str, returns bytes", FUNCTION, "add_type_hints path: str -> bytes"),
    ("hint path as str and the return too", FUNCTION, "add_type_hints path: str -> str"),
    ("pass encoding='utf-8' to open", FUNCTION, "add_keyword open encoding 'utf-8'"),
    ("take a timeout argument defaulting to None", FUNCTION, "new_parameter timeout=None"),
    ("should also inherit from dict", "class A(B):\n    pass\n", "add_base A dict"),
    ("don't inherit from object", "class A(object):\n    pass\n", "change_base A  object"),
    ("don't catch OSError", "try:\n    f()\nexcept (KeyError, OSError):\n    g()\n", "uncatch OSError"),
    # conditions
    ("raise TypeError if path is not a str", FUNCTION, "raise_if not isinstance(path, str) TypeError"),
    ("mode must not be empty, raise ValueError", FUNCTION, "raise_if_empty mode ValueError"),
    ("check that mode is not empty or raise ValueError", FUNCTION, "raise_if_empty mode ValueError"),
    ("return None unless path", FUNCTION, None),
    ("return an empty list if mode is empty", FUNCTION, "return_if not mode []"),
    ("return early if path is None", FUNCTION, "return_if path is None"),
    ("remove the comment", "x = 1  # one\n", "remove_comments"),
    ("add type hints path: str, mode: str -> bytes", FUNCTION, "add_type_hints path: str, mode: str -> bytes"),
    ("turn the lambda d into a def", "d = lambda b: b\n", "lambda_to_def"),
    ("return early if not path", FUNCTION, None),  # it returns something elsewhere: what now?
    ("return early if not path", "def go(path):\n    print(path)\n", "return_if not path"),
    ("return None if not path", FUNCTION, "return_if not path None"),
    ("add a guard: return None if path is None", FUNCTION, "guard_none path return None"),
    ("add a check that raises ValueError if limit is negative", FUNCTION, None),
    ("add a check: raise ValueError if limit < 0", FUNCTION, "raise_if limit is not None and limit < 0 ValueError"),
    (
        "raise ValueError if n is negative",
        "def f(n: Optional[int]):\n    return n\n",
        "raise_if n is not None and n < 0 ValueError",
    ),
    ("raise ValueError if n is negative", "def f(n: int):\n    return n\n", "raise_if n < 0 ValueError"),
    (
        "mode = mode or 'r'",
        "def f(mode=None):\n    mode = mode if mode else 'r'\n",
        "replace_text mode = mode if mode else 'r' mode = mode or 'r'",
    ),
    ("return False unless isinstance(path, str)", FUNCTION, "return_if not isinstance(path, str) False"),
    # other ways to write the same
    ("simplify with any", FUNCTION, "use_any_all"),
    ("list comp", FUNCTION, "use_comprehension"),
    ("replace the loop with a comprehension", FUNCTION, "use_comprehension"),
    ("else is not needed after return", FUNCTION, "remove_else_return"),
    ("combine the two ifs", FUNCTION, "merge_nested_if"),
    ("return early", FUNCTION, "early_return"),
    ("no temp variable needed", FUNCTION, None),
    ("turn the lambda into a def", "f = lambda x: x\n", "lambda_to_def"),
    ("bare except should be except OSError", "try:\n    f()\nexcept:\n    g()\n", "narrow_except OSError"),
    ("use logger.info instead of print", "def f():\n    print('a')\n", "log_prints logger info"),
]
MODELS = [
    "add a parameter sep='-' and use it in the join",  # more than a parameter
    "rename everything",
    "rename nothing_here to other",  # it is not there
    "use f-strings instead of what we have in the tests",
    "use a tuple instead of a list",
    "import result as outcome",  # a name of the file, not a module
    "add a docstring to load",
    "make it faster",
    "path should be a Path object everywhere",
    "raise ValueError if the file is too large",  # not a condition
    "remove the feature",
]


@pytest.mark.parametrize(("instruction", "text", "wanted"), READ, ids=[case[0] for case in READ])
def test_what_is_spelled_out_is_read(instruction: str, text: str, wanted: str | None) -> None:
    call = read(instruction, region(text), CODE + CLASS)
    if wanted is None:
        assert call is None
        return
    assert call is not None and " ".join((call.name, *call.args)) == wanted
    assert describe(call)


@pytest.mark.parametrize("instruction", MODELS)
def test_what_is_not_is_left_to_a_model(instruction: str) -> None:
    assert read(instruction, region(FUNCTION), CODE) is None


def test_politeness_and_reasons_are_set_aside() -> None:
    assert core("Can you please rename a to b, it shadows the module") == "rename a to b"
    assert core("no, call it say") == core("wait, please call it say") == "call it say"
    assert core("no longer raise") == "no longer raise"
    assert core("add 'x' to Y because tests need it pls") == "add 'x' to Y"


@pytest.mark.parametrize(
    ("call", "instruction", "word"),
    [
        (
            Call("raise_if_empty", ("max_length", "ValueError")),
            "raise ValueError if max_length is negative",
            "negative",
        ),
        (Call("new_parameter", ("mode='wb'",)), "add a parameter mode='wb' and use it in fdopen", "and"),
        (Call("add_parameter", ("copy", "memo=None")), "add a memo=None parameter and pass it on", "and"),
        (Call("rename", ("retheme", "Simplify")), "Simplify the retheme logic", "logic"),
        (Call("merge_nested_if", ()), "merge both dictionaries", "dictionaries"),
        (Call("add_decorator", ("staticmethod",)), "remove @staticmethod", "remove"),
        (Call("make_async", ()), "make it synchronous", "synchronous"),
        (Call("quotes", ("double",)), "use double quotes", None),
        (Call("guard_none", ("word", "raise", "TypeError")), "throw a TypeError when word is None", None),
    ],
)
def test_words_without_a_counterpart(call: Call, instruction: str, word: str | None) -> None:
    assert unexpressed(call, instruction, FUNCTION) == word


def test_every_call_can_be_told() -> None:
    from fulgur.edit.refactor import CALLS, LOCAL, OVER_PROJECT

    assert set(MEANINGS) == {*CALLS, *LOCAL, *OVER_PROJECT}
    for name in MEANINGS:
        assert "_" not in describe(Call(name, ("a", "b", "c"))) and "{0" not in describe(Call(name, ("a", "b", "c")))
