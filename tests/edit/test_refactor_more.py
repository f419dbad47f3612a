"""Refactorings inside a region that take something away, put it in fewer words, or name one thing: done and refused."""

from __future__ import annotations

import pytest

from fulgur.edit.refactor import RefactorError, apply_call, apply_local
from fulgur.text.edit_format import Call

TRY = "try:\n    f()\nexcept E:\n    pass\n"
LOOP = f"for a in b:\n{''.join(f'    {line}{chr(10)}' for line in TRY.splitlines())}"
CLASS = "class A:\n    def f(self, a):\n        return a\n"

DONE: list[tuple[Call, str, str]] = [
    (Call("return_condition"), "    if a == b:\n        return True\n    return False\n", "    return a == b\n"),
    (Call("return_condition"), "if a in b:\n    return False\nelse:\n    return True\n", "return a not in b\n"),
    (Call("return_condition"), "    if a:\n        return True\n    return False\n", "    return bool(a)\n"),
    (Call("use_yield_from"), "def f(a):\n    for b in a:\n        yield b\n", "def f(a):\n    yield from a\n"),
    (Call("use_suppress"), TRY, "with contextlib.suppress(E):\n    f()\n"),
    (Call("use_suppress"), TRY.replace("E:", "(E, F):"), "with contextlib.suppress(E, F):\n    f()\n"),
    (Call("membership_in", ("tuple",)), "if a in [1, b]:\n    pass\n", "if a in (1, b):\n    pass\n"),
    (Call("membership_in", ("set",)), "ok = a not in ('b', 'c')\n", "ok = a not in {'b', 'c'}\n"),
    (Call("join_strings"), "a = 'b ' 'c'\nd = 'e' \"f\"\n", "a = 'b c'\nd = 'e' \"f\"\n"),
    (Call("raw_strings"), "re.sub('\\\\d', '\\n', a)\nb = '\\\\s'\n".replace("\\\\", "\\"),
     "re.sub(r'\\d', '\\n', a)\nb = '\\s'\n"),
    (Call("remove_parentheses"), "    return (a, b)\n", "    return a, b\n"),
    (Call("remove_parentheses"), "if(a):\n    return (f(b))\n", "if a:\n    return f(b)\n"),
    (Call("use_or"), "a = b.c if b.c else []\n", "a = b.c or []\n"),
    (Call("direct_attribute"), 'setattr(self, "a", b)\n', "self.a = b\n"),
    (Call("direct_attribute"), 'b = getattr(a, "c")\nd = getattr(a, "e", 1)\n', 'b = a.c\nd = getattr(a, "e", 1)\n'),
    (Call("assert_to_raise", ("ValueError",)), "    assert a in b\n",
     '    if a not in b:\n        raise ValueError("a not in b is not allowed")\n'),
    (Call("assert_to_raise", ("E",)), "assert a, f'no {a}'\n", "if not a:\n    raise E(f'no {a}')\n"),
    (Call("assert_to_raise", ("E",)), "assert a.b\n", 'if not a.b:\n    raise E("expected a.b")\n'),
    (Call("instead_of_pass", ("raise",)), TRY, TRY.replace("pass", "raise")),
    (Call("instead_of_pass", ("return", "None")), TRY, TRY.replace("pass", "return None")),
    (Call("instead_of_pass", ("continue",)), LOOP, LOOP.replace("pass", "continue")),
    (Call("message_with", ("path",)), 'raise E("not found")\n', 'raise E(f"not found: {path}")\n'),
    (Call("message_with", ("a.b",)), "raise E('wrong {x}.')\n", "raise E(f'wrong {{x}}: {a.b}.')\n"),
    (Call("message_with", ("b",)), "raise E(f'{a} is wrong')\n", "raise E(f'{a} is wrong: {b}')\n"),
    (Call("log_level", ("debug",)), 'logger.warning("a", b)\n', 'logger.debug("a", b)\n'),
    (Call("log_level", ("info", "error")), "self.log.error(a)\nlog.debug(b)\n", "self.log.info(a)\nlog.debug(b)\n"),
    (Call("remove_comment", ("one", "noqa")), "a = 1  # noqa\n# b\nc = 2\n", "a = 1\n# b\nc = 2\n"),
    (Call("remove_comment", ("all", "TODO")), "# todo: a\n#  and b\na()\nb()  # TODO\n", "a()\nb()\n"),
    (Call("remove_dead_code"), "# The rest is old.\n#a = f(1)\n#if a:\n#    b()\nc()\n", "# The rest is old.\nc()\n"),
    (Call("add_comment", ("why not",)), "def f():\n    return 1\n", "def f():\n    # why not\n    return 1\n"),
    (Call("add_comment", ("twice", "for")), "a()\nfor b in c:\n    pass\n", "a()\n# twice\nfor b in c:\n    pass\n"),
    (Call("remove_decorator", ("cache",)), "@functools.cache\ndef f(): ...\n", "def f(): ...\n"),
    (Call("remove_decorator", ("@wraps",)), "@a\n@wraps(b)\ndef f(): ...\n", "@a\ndef f(): ...\n"),
    (Call("make_static"), CLASS.split("\n", 1)[1],
     "    @staticmethod\n    def f(a):\n        return a\n"),
    (Call("make_static"), "    def f(self):\n        return 1\n",
     "    @staticmethod\n    def f():\n        return 1\n"),
    (Call("accept_type", ("tuple", "list")), "if isinstance(a, list):\n    pass\n",
     "if isinstance(a, (list, tuple)):\n    pass\n"),
    (Call("accept_type", ("bytes",)), "if isinstance(a, (str, int)):\n    pass\n",
     "if isinstance(a, (str, int, bytes)):\n    pass\n"),
    (Call("extract_parameter", ("'-'", "sep")), "def f(a):\n    return a.replace('_', '-')\n",
     "def f(a, sep='-'):\n    return a.replace('_', sep)\n"),
    (Call("remove_return_type"), "def f(a) -> int:\n    return a\n", "def f(a):\n    return a\n"),
    (Call("remove_variable", ("b",)), "def f(a):\n    b = a.c\n    return a\n", "def f(a):\n    return a\n"),
    (Call("remove_variable", ("b",)), "def f(a):\n    b = a()\n    return a\n", "def f(a):\n    a()\n    return a\n"),
    (Call("wrap_value", ("list", "a.keys()")), "return a.keys()\n", "return list(a.keys())\n"),
    (Call("only_return", ("max(a, default=None)",)),
     "def f(a):\n    if a:\n        return max(a)\n    else:\n        return None\n",
     "def f(a):\n    return max(a, default=None)\n"),
    (Call("remove_item", ("A", "'b'")), "A = ['a', 'b', 'c']\n", "A = ['a', 'c']\n"),
    (Call("remove_item", ("A", "'c'")), "A = ['a', 'b', 'c']\n", "A = ['a', 'b']\n"),
    (Call("remove_item", ("A", "1")), "A = {\n    1,\n    2,\n}\n", "A = {\n    2,\n}\n"),
    (Call("remove_item", ("A", "2")), "A = [\n    1,\n    2\n]\n", "A = [\n    1\n]\n"),
    (Call("remove_item", ("A", "'a'")), "A = {'a': 1, 'b': 2}\n", "A = {'b': 2}\n"),
    (Call("set_entry", ("A", "'a'", "3")), "A = {'a': 1, 'b': 2}\n", "A = {'a': 3, 'b': 2}\n"),
    (Call("wrap_return", ("list",)), "def f(a):\n    return (b for b in a)\n",
     "def f(a):\n    return list(b for b in a)\n"),
    (Call("wrap_return", ("bool",)), "def f(a):\n    return a or 1\n", "def f(a):\n    return bool(a or 1)\n"),
    (Call("first_call", ("a", "strip")), "def f(a):\n    return a\n", "def f(a):\n    a = a.strip()\n    return a\n"),
    (Call("remove_try", ("E",)), TRY, "f()\n"),
    (Call("swap_arguments", ("max",)), "a = max(0, b(1))\n", "a = max(b(1), 0)\n"),
    (Call("annotate_variable", ("a", "list[int]")), "def f():\n    a = []\n    return a\n",
     "def f():\n    a: list[int] = []\n    return a\n"),
    (Call("plain_placeholders"), "a = f'{str(b)} {str(c)!r} {d}'\n", "a = f'{b} {str(c)!r} {d}'\n"),
    (Call("unwrap_lambda"), "a(lambda b: c(b), 1)\n", "a(c, 1)\n"),
    (Call("drop_u"), "a = u'b' + U\"c\" + 'u'\n", "a = 'b' + \"c\" + 'u'\n"),
    (Call("remove_parentheses"), "f((a if b else c), (d), (1, 2))\n", "f(a if b else c, d, (1, 2))\n"),
    (Call("change_operator", (">", ">=")), "if a > b and c < d:\n    pass\n", "if a >= b and c < d:\n    pass\n"),
    (Call("set_docstring", ("New one.",)), 'def f():\n    """Old."""\n    g()\n',
     'def f():\n    """New one."""\n    g()\n'),
    (Call("store_parameter", ("b", "b")), "    def __init__(self, a, b):\n        self.a = a\n        self.c = 1\n",
     "    def __init__(self, a, b):\n        self.a = a\n        self.b = b\n        self.c = 1\n"),
    (Call("literal_kind", ("A", "tuple")), "A = ['a', 'b']\n", "A = ('a', 'b')\n"),
    (Call("remove_base", ("A", "B")), "class A(B):\n    pass\n", "class A:\n    pass\n"),
    (Call("remove_base", ("A", "C")), "class A(B, C):\n    pass\n", "class A(B):\n    pass\n"),
    (Call("remove_base", ("A", "B")), "class A(B, metaclass=C):\n    pass\n", "class A(metaclass=C):\n    pass\n"),
    (Call("wrap_value", ("list", "a.b")), "return a.b(1)\n", "return list(a.b(1))\n"),
    (Call("optional_union"), "def f(a: Union[int, None]): ...\n", "def f(a: int | None): ...\n"),
    (Call("return_if", ("not a", "1")), "def f(a):\n    if not a:\n        return 0\n    return a\n",
     "def f(a):\n    if not a:\n        return 1\n    return a\n"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "before", "after"), DONE, ids=[f"{c.name}-{n}" for n, (c, _, _) in enumerate(DONE)])
def test_it_is_done(call: Call, before: str, after: str) -> None:
    assert apply_local(before, call) == after


REFUSED: list[tuple[Call, str, str]] = [
    (Call("return_condition"), "    if a:\n        return 1\n    return False\n", "no if that returns"),
    (Call("return_condition"), "    if a:\n        return True  # why\n    return False\n", "comment"),
    (Call("use_yield_from"), "def f(a):\n    for b in a:\n        yield b\n    g(b)\n", "changes nothing"),
    (Call("use_suppress"), TRY.replace(" E", ""), "changes nothing"),
    (Call("use_suppress"), TRY.replace("pass", "pass  # fine"), "comment"),
    (Call("membership_in", ("set",)), "ok = a in (b, c)\n", "unhashable"),
    (Call("join_strings"), "a = ('b'\n     'c')\n", "changes nothing"),
    (Call("raw_strings"), "re.sub('\\n', '', a)\n", "changes nothing"),
    (Call("remove_parentheses"), "    return (a)[0]\n", "changes nothing"),
    (Call("use_or"), "a = f() if f() else 1\n", "changes nothing"),
    (Call("direct_attribute"), 'setattr(self, "__a", b)\n', "changes nothing"),
    (Call("assert_to_raise", ("E",)), "assert a\nassert b\n", "more than one assert"),
    (Call("instead_of_pass", ("raise",)), TRY.replace("pass", "g()"), "only passes"),
    (Call("instead_of_pass", ("continue",)), TRY, "no loop"),
    (Call("message_with", ("a",)), "raise E('%s' % b)\n", "no error message"),
    (Call("message_with", ("a",)), "raise E(f'no {a}')\n", "already"),
    (Call("log_level", ("debug",)), "logger.info(a)\nlogger.warning(b)\n", "more than one"),
    (Call("remove_comment", ("one", "a")), "# a\nb()\n# a b\n", "more than one comment"),
    (Call("remove_dead_code"), "# note: see below, this works\n# a, b\nc()\n", "changes nothing"),
    (Call("add_comment", ("x", "for")), "a()\n", "no line"),
    (Call("remove_decorator", ("b",)), "@a\ndef f(): ...\n", "no decorator b"),
    (Call("make_static"), "    def f(self):\n        return self\n", "uses self"),
    (Call("make_static"), "    @a\n    def f(self):\n        return 1\n", "decorator"),
    (Call("accept_type", ("tuple",)), "isinstance(a, int) or isinstance(b, str)\n", "more than one"),
    (Call("extract_parameter", ("1", "n")), "def f(a):\n    return a[1] + 1\n", "more than one"),
    (Call("extract_parameter", ("1", "a")), "def f(a):\n    return a[1]\n", "already"),
    (Call("remove_variable", ("b",)), "def f(a):\n    b = a\n    return b\n", "is used"),
    (Call("remove_variable", ("b",)), "b = 1\n", "no local variable"),
    (Call("wrap_value", ("list", "a")), "return list(a)\n", "already"),
    (Call("wrap_value", ("list", "a")), "b(a, a)\n", "more than one"),
    (Call("only_return", ("max(a)",)), "def f(a):\n    g()\n    return max(a)\n", "does more"),
    (Call("only_return", ("b",)), "def f(a):\n    if a:\n        return 1\n    return 2\n", "nothing to do with"),
    (Call("remove_item", ("A", "1")), "A = {1}\n", "empty dictionary"),
    (Call("remove_item", ("A", "3")), "A = [1, 2]\n", "there is no 3"),
    (Call("set_entry", ("A", "'c'", "3")), "A = {'a': 1}\n", "there is no 'c'"),
    (Call("wrap_return", ("list",)), "def f(a):\n    if a:\n        return 1\n    return a\n", "more than one"),
    (Call("wrap_return", ("list",)), "def f(a):\n    return a, 1\n", "cannot be passed on"),
    (Call("unwrap_lambda"), "a(lambda b: c(b, 1))\n", "no lambda"),
    (Call("drop_u"), "a = 'u'\n", "changes nothing"),
    (Call("plain_placeholders"), "a = f'{str(b):>3}'\n", "changes nothing"),
    (Call("first_call", ("a", "strip")), "def f(a=None):\n    return a\n", "may be None"),
    (Call("first_call", ("a", "strip")), "def f(a: str | None):\n    return a\n", "may be None"),
    (Call("first_call", ("b", "strip")), "def f(a):\n    return a\n", "no parameter b"),
    (Call("change_operator", (">", ">=")), "ok = a > b > c\n", "more than one"),
    (Call("set_docstring", ("New one.",)), 'def f():\n    """Old.\n\n    More.\n    """\n', "more than one line"),
    (Call("store_parameter", ("b", "a")), "    def __init__(self, a, b):\n        self.a = a\n", "already"),
    (Call("store_parameter", ("a", "a")), "    def f(self, a):\n        self.b = a\n", "not a constructor"),
    (Call("literal_kind", ("A", "tuple")), "A = ['a', 'b']\nA.append('c')\n", "changed somewhere"),
    (Call("remove_base", ("A", "C")), "class A(B):\n    pass\n", "no base C"),
    (Call("remove_try", ("F",)), TRY, "no try with one except for F"),
    (
        Call(
            "remove_try",
        ),
        TRY + "else:\n    g()\n",
        "no try",
    ),
    (Call("swap_arguments", ("max",)), "a = max(0, b, c)\n", "two arguments"),
    (Call("annotate_variable", ("a", "int")), "def f():\n    a: int = 1\n", "already"),
    (
        Call("annotate_variable", ("a", "int")),
        "def f(b):\n    if b:\n        a = 1\n    else:\n        a = 2\n",
        "conditionally",
    ),
]


@pytest.mark.parametrize(("call", "text", "why"), REFUSED, ids=[f"{c.name}-{n}" for n, (c, _, _) in enumerate(REFUSED)])
def test_it_is_refused(call: Call, text: str, why: str) -> None:
    with pytest.raises(RefactorError, match=why):
        apply_local(text, call)


LATE = "import os\n\n\ndef f(a):\n    import math\n\n    return math.floor(a)\n"


def test_an_import_moves_to_the_top() -> None:
    after = "import math\nimport os\n\n\ndef f(a):\n    return math.floor(a)\n"
    assert apply_call(LATE, Call("import_to_top", ("math",)), (13, len(LATE))) == after
    assert apply_call(LATE, Call("import_to_top"), (13, len(LATE))) == after


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LATE.replace("import math", "from . import math"), "import cycle"),
        (LATE.replace("import math\n", "import math  # slow\n"), "alone"),
        (LATE + "\n\nmath = 1\n", "means something else"),
        ("import math\n\n\ndef f(a):\n    return a\n", "no import of math inside"),
    ],
)
def test_an_import_stays_where_it_is(text: str, why: str) -> None:
    with pytest.raises(RefactorError, match=why):
        apply_call(text, Call("import_to_top", ("math",)))
