# ruff: noqa: E501 (a table of sources)
"""`fulgur ask`: the symbol index and the answers from it."""

from pathlib import Path

import pytest

from fulgur.ui.cli import main
from fulgur.workspace.ask import answer
from fulgur.workspace.plain_words import alternatives, asked_words, parts, stem
from fulgur.workspace.symbols import SymbolIndex, symbols_in

SOURCES = {
    "py": (b"X = 1\nclass A:\n    def m(self):\n        def inner(): pass\ndef f(): pass\n",
           ["constant X", "class A", "method A.m", "function A.m.inner", "function f"]),
    "js": (b"function f() {}\nclass A { m() {} }\nexport const g = () => 1\nconst h = 2\n",
           ["function f", "class A", "method A.m", "constant g", "constant h"]),
    "ts": (b"interface I { a: number }\ntype T = string\nenum E { A }\nexport class C { m(): void {} }\n",
           ["interface I", "type T", "enum E", "class C", "method C.m"]),
    "tsx": (b"export function App() { return <div/> }\n", ["function App"]),
    "go": (b"package a\ntype S struct{}\nfunc (s S) M() {}\nfunc F() {}\nconst C = 1\n",
           ["type S", "method M", "function F", "constant C"]),
    "rs": (b"struct S;\nenum E { A }\ntrait T { fn t(&self); }\nfn f() {}\nmod m { pub fn g() {} }\nmacro_rules! mac { () => {} }\n",
           ["struct S", "enum E", "trait T", "function f", "module m", "function m.g", "macro mac"]),
    "c": (b"#define N 1\nstruct s { int a; };\nint f(void) { return 1; }\nchar *g(void) { return 0; }\ntypedef int t;\n",
          ["macro N", "struct s", "function f", "function g", "type t"]),
    "java": (b"class A { void m() {} A() {} }\ninterface I {}\nenum E { X }\n",
             ["class A", "method A.m", "method A.A", "interface I", "enum E"]),
    "txt": (b"def f(): pass\n", []),
}  # fmt: skip


@pytest.mark.parametrize("suffix", SOURCES)
def test_symbols(suffix: str) -> None:
    source, wanted = SOURCES[suffix]
    assert [f"{symbol.kind} {symbol.qualified}" for symbol in symbols_in(source, suffix)] == wanted


@pytest.fixture
def project(workspace: Path) -> Path:
    for name, text in {
        "src/engine/cache.py": "class KVCache:\n    def evict(self):\n        pass\n\n\ndef load_blocks():\n    pass\n",
        "src/server/retry.py": "def backoff_delay(n):\n    return n\n",
        "tests/test_cache.py": "class KVCache:\n    pass\n",
        "docs/guide.md": "# Guide\n\nThe telemetry beacon is sent hourly.\n",
        ".gitignore": "dist/\n",
        "dist/cache.py": "class KVCache: pass\n",
    }.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    return workspace


@pytest.mark.parametrize(
    ("question", "place"),
    [
        ("which file owns KVCache?", "src/engine/cache.py:1"),
        ("where is the kv cache kept", "src/engine/cache.py:1"),
        ("KVCache.evict", "src/engine/cache.py:2"),
        ("which file owns the backoff delays?", "src/server/retry.py:1"),
        ("who sends the telemetry beacon?", "docs/guide.md:3"),
        ("kvcache", "src/engine/cache.py:1"),
    ],
)
def test_answers(project: Path, tmp_path: Path, question: str, place: str) -> None:
    index = SymbolIndex(project, tmp_path / "home")
    index.refresh()
    best = answer(question, index)[0]
    assert f"{best.path}:{best.line}" == place


# Questions in plain words about a real package, and the definitions that answer them.
ABOUT_CLICK = {
    "where are colours removed from the output when it is no terminal?": [
        "resolve_color_default",
        "should_strip_ansi",
        "strip_ansi",
    ],
    "how does it ask the user for a password?": ["hidden_prompt_func", "password_option", "prompt"],
    "what shows the progress bar?": ["ProgressBar", "ProgressBar.render_progress", "progressbar"],
    "where are environment variables read for options?": [
        "Option.resolve_envvar_value",
        "Option.value_from_envvar",
        "Parameter.resolve_envvar_value",
        "Parameter.value_from_envvar",
    ],
    "who opens an editor for the user?": ["Editor", "Editor.edit", "Editor.edit_files", "edit"],
    "where is the text wrapped for the help page?": ["HelpFormatter.write_text", "TextWrapper", "wrap_text"],
    "how are similar option names suggested when one is unknown?": [
        "NoSuchOption",
        "NoSuchOption.__init__",
        "NoSuchOption.format_message",
    ],
    "what completes words in the shell when tab is pressed?": [
        "Command.shell_complete",
        "ShellComplete",
        "ShellComplete.complete",
        "ShellComplete.get_completions",
        "shell_complete",
    ],
    "where are the arguments split into options and values?": [
        "OptionParser.parse_args",
        "_OptionParser",
        "_OptionParser._process_args_for_args",
        "_OptionParser._process_args_for_options",
        "_OptionParser.parse_args",
    ],
}


def test_plain_words_find_the_definition_in_a_real_package(tmp_path: Path) -> None:
    click = pytest.importorskip("click")
    index = SymbolIndex(Path(click.__file__).resolve().parent, tmp_path / "home")
    index.refresh()
    first = {question: [place.what for place in answer(question, index, 3)] for question in ABOUT_CLICK}
    missed = {question: first[question] for question, right in ABOUT_CLICK.items() if not {*first[question]} & {*right}}
    assert len(missed) <= 1, missed


def test_words_and_names_meet() -> None:
    assert parts("load_KVBlocks") == {"load", "kv", "block"}
    assert stem("stripped") == stem("strip") and stem("caching") == stem("caches") == stem("cache")
    assert asked_words("Where is the KV cache kept?") == ["kv", "cache"]
    assert {"env", "environ"} <= alternatives("environment").keys()


def test_index_follows_the_files(project: Path, tmp_path: Path) -> None:
    index = SymbolIndex(project, tmp_path / "home")
    index.refresh()
    assert len(index.named("KVCache")) == 2
    (project / "src/engine/cache.py").write_text("class Renamed:\n    pass\n")
    (project / "tests/test_cache.py").unlink()
    again = SymbolIndex(project, tmp_path / "home")
    again.refresh()
    assert again.named("KVCache") == []
    assert again.named("Renamed")[0][0] == "src/engine/cache.py"


def test_command(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FULGUR_HOME", str(tmp_path / "home"))
    assert main(["ask", "-C", str(project), "which", "file", "owns", "backoff_delay?"]) == 0
    assert capsys.readouterr().out.split() == ["src/server/retry.py:1", "function", "backoff_delay"]
    assert main(["ask", "-C", str(project), "--json", "-n", "1", "KVCache"]) == 0
    assert '"path": "src/engine/cache.py", "line": 1' in capsys.readouterr().out
    assert main(["ask", "-C", str(project), "zzzqqq"]) == 1


def test_a_plain_word_that_names_a_definition_is_shown_as_one(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/shop.py").write_text("def total(store):\n    return store.total\n")
    index = SymbolIndex(tmp_path / "work", tmp_path / "home")
    index.refresh()
    first = answer("what does total do?", index)[0]
    assert (first.path, first.line, first.kind, first.what) == ("shop.py", 1, "function", "total")


def test_old_news_come_last(workspace: Path, tmp_path: Path) -> None:
    """A list of changes, and the README's copy in package metadata, have every word that the real place has."""
    for name in ("HISTORY.txt", "CHANGELOG.md", "PKG-INFO", "a.egg-info/README.md", "docs/guide.md"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text("Chunked bodies are decoded.\n")
    found = answer("how are chunked bodies decoded", SymbolIndex(workspace, tmp_path / "home"))
    assert found[0].path == "docs/guide.md"
