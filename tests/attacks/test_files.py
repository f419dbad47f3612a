"""Files that are not what they seem: links out, endless files, names that are not text, swapped folders."""

import asyncio
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_world import agent_on, call, say, serving
from sandbox_world import World, each_backend
from waiting import PATIENCE

from fulgur.agent.loop.images import images_named, read_images
from fulgur.agent.loop.prompt import find_rules, rules_left_out
from fulgur.config.records import ProjectRecords
from fulgur.config.settings import load_settings
from fulgur.edit.model import model_folder
from fulgur.errors import FulgurError
from fulgur.protocol.agent import TurnDone
from fulgur.sandbox import start
from fulgur.sandbox.backend import Sandbox
from fulgur.sandbox.policy import Policy
from fulgur.tools import reading
from fulgur.tools.environment import command_environment, withheld
from fulgur.tools.reading import SearchArguments, search_text
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Files
from fulgur.workspace.folders import embedded_models
from fulgur.workspace.snapshots import Snapshots, read_manifest, store_manifest
from fulgur.workspace.symbols import symbols_in
from fulgur.workspace.undo import restore

ODD = os.fsdecode(b"caf\xe9 \xff.py")


def bench(workspace: Path, home: Path) -> tuple[Files, Snapshots]:
    blobs = BlobStore(home / "blobs")
    return Files(Policy.make("workspace-write", workspace, home), blobs, home / "j"), Snapshots(workspace, blobs)


def test_the_home_of_nobody_is_a_name_like_any_other(workspace: Path, home: Path) -> None:
    """`~name` of a user who is not there comes from models and configs; it must not end a turn."""
    files, _ = bench(workspace, home)
    assert files.locate("~nobody-here/x") == workspace / "~nobody-here/x"
    assert files.locate("~/x") == Path(os.path.expanduser("~")) / "x"


# --- undo ---


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_undo_never_leaves_the_workspace(workspace: Path, home: Path, tmp_path: Path, when: str) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    for name in ("made", "kept", "inner/deep"):
        (outside / name).write_text("mine")
    files, snapshots = bench(workspace, home)
    (workspace / "d/inner").mkdir(parents=True)
    (workspace / "d/kept").write_text("old")
    before = snapshots.take()
    (workspace / "d/made").write_text("new")
    (workspace / "d/inner/deep").write_text("new")
    (workspace / "d/kept").unlink()
    (workspace / "d/folder").mkdir()
    after = snapshots.take()
    if when == "meanwhile":  # the folder is swapped between the look and the change
        look = snapshots.take
        snapshots.take = lambda: (look(), swap(workspace / "d", outside))[0]  # type: ignore[method-assign]
    else:
        swap(workspace / "d", outside)
    (outside / "folder").mkdir()
    restore(files, snapshots, before, after)
    assert sorted(path.name for path in outside.rglob("*")) == ["deep", "folder", "inner", "kept", "made"]
    assert (outside / "kept").read_text() == (outside / "made").read_text() == "mine"


def swap(folder: Path, target: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(target)


@pytest.mark.parametrize("kind", ["file", "folder", "link", "mode"])
def test_undo_still_restores(workspace: Path, home: Path, kind: str) -> None:
    files, snapshots = bench(workspace, home)
    (workspace / "x/y").mkdir(parents=True)
    (workspace / "x/f").write_text("1")
    (workspace / "x/l").symlink_to("f")
    before = snapshots.take()
    if kind == "file":
        (workspace / "x/f").write_text("2")
    elif kind == "folder":
        (workspace / "x/y").rmdir()
        (workspace / "x/y").write_text("now a file")
    elif kind == "link":
        (workspace / "x/l").unlink()
        (workspace / "x/l").mkdir()
    else:
        (workspace / "x/y").chmod(0o700)
    after = snapshots.take()
    assert restore(files, snapshots, before, after).failed == []
    assert {n: (e.kind, e.mode, e.blob) for n, e in snapshots.take().items()} == {
        n: (e.kind, e.mode, e.blob) for n, e in before.items()
    }


def test_a_damaged_content_is_not_restored(workspace: Path, home: Path) -> None:
    files, snapshots = bench(workspace, home)
    (workspace / "f").write_text("old")
    before = snapshots.take()
    (workspace / "f").write_text("newer")
    after = snapshots.take()
    files.blobs.path(before["f"].blob).write_text("evil")
    assert restore(files, snapshots, before, after).failed == ["f: its stored content is damaged"]
    assert (workspace / "f").read_text() == "newer"


# --- rules ---


def rules(workspace: Path) -> str:
    return "".join(rule.text for rule in find_rules(load_settings(workspace)))


def test_rules_are_not_taken_from_outside(workspace: Path, home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("TOP-SECRET")
    for target in (secret, Path("/etc/passwd"), Path("/proc/self/environ"), Path("../secret"), Path("loop")):
        link = workspace / "AGENTS.md"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert rules(workspace) == ""
        assert [str(link) in said for said in rules_left_out(load_settings(workspace))] == [True]
    (workspace / ".env").write_text("TOP-SECRET")
    (workspace / "AGENTS.md").unlink()
    (workspace / "AGENTS.md").symlink_to(".env")
    assert rules(workspace) == ""
    (workspace / "AGENTS.md").unlink()
    (workspace / "CLAUDE.md").write_text("be brief")
    (workspace / "AGENTS.md").symlink_to("CLAUDE.md")  # a link inside the project is a habit of many
    assert rules(workspace) == "be brief" and rules_left_out(load_settings(workspace)) == []


def test_a_folder_of_rules_that_leads_out(workspace: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/AGENTS.md").write_text("TOP-SECRET")
    (workspace / "sub").symlink_to(tmp_path / "elsewhere")
    assert rules(workspace) == ""


def test_endless_rules_are_not_read_whole(workspace: Path, home: Path) -> None:
    with (workspace / "AGENTS.md").open("wb") as file:
        file.write(b"short ")
        file.truncate(3 << 30)
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "from pathlib import Path; from fulgur.agent.loop.prompt import find_rules;"
        "from fulgur.config.settings import load_settings; import sys;"
        "print(sum(len(r.text) for r in find_rules(load_settings(Path(sys.argv[1])))))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(workspace)], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 32768


def test_a_pipe_is_not_waited_for(workspace: Path, home: Path) -> None:
    os.mkfifo(workspace / "AGENTS.md")
    assert rules(workspace) == ""


# --- names ---


async def test_a_name_that_is_not_utf8(workspace: Path, home: Path) -> None:
    (workspace / ODD).write_text("def odd_one():\n    return 1\n")
    (workspace / "x.txt").symlink_to(os.fsdecode(b"\xfe"))
    command = "cp *.py copy.txt 2>/dev/null; rm -f *.py; echo done"
    tools = [call("list", {}, times=1), call("search", {"pattern": "odd_one"}, times=1)]
    async with serving([*tools, call("shell", {"command": command}, times=1), say("ok")]) as running:
        async with agent_on(running, workspace) as watch:
            assert isinstance(await watch.turn("go"), TurnDone)
            assert any("caf\\xe9 \\xff.py" in output for output in watch.outputs)
            if not (workspace / ODD).exists():
                await watch.agent.undo()
                assert (workspace / ODD).read_text().startswith("def odd_one")
            assert isinstance(await watch.turn("again"), TurnDone)


def test_ask_with_a_name_that_is_not_utf8(workspace: Path, home: Path) -> None:
    (workspace / ODD).write_text("def odd_one():\n    return 1\n")
    for _ in range(2):  # the second time from the stored index
        command = start.python("fulgur", "ask", "-C", str(workspace), "odd_one")
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and "caf\\xe9 \\xff.py:1" in done.stdout, done.stderr


def test_manifests_keep_every_name(workspace: Path, home: Path) -> None:
    (workspace / ODD).write_text("1")
    (workspace / "l").symlink_to(ODD)
    _, snapshots = bench(workspace, home)
    taken = snapshots.take()
    assert read_manifest(store_manifest(taken, snapshots.blobs), snapshots.blobs) == taken


# --- secrets ---


def test_our_own_tools_do_not_read_secrets(workspace: Path, home: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "id").write_text("TOP-SECRET")
    (workspace / "way").symlink_to(keys)
    policy = Policy.make("workspace-write", workspace, home, hide=[keys])
    files = Files(policy, BlobStore(home / "b"), home / "j")
    (home / "other.jsonl").write_text("TOP-SECRET")
    for path in (str(keys / "id"), "way/id", f"../{keys.name}/id", str(home / "other.jsonl")):
        with pytest.raises(FulgurError, match="hidden"):
            files.read(files.locate(path))
    _, listing, search = reading.reading_tools(files)
    with pytest.raises(FulgurError, match="hidden"):
        asyncio.run(listing.run(reading.ListArguments(path=str(keys)), lambda text: None))
    found = asyncio.run(search.run(SearchArguments(pattern="TOP-SECRET", path=str(tmp_path)), lambda text: None))
    assert "TOP-SECRET" not in found.output.replace("'TOP-SECRET'", "")


def test_hidden_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".ssh", ".aws", ".config/gh", "project"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".netrc").write_text("x")
    monkeypatch.setenv("HOME", str(tmp_path))
    policy = Policy.make("workspace-write", tmp_path / "project", tmp_path / "none")
    assert {path.name for path in policy.hidden} == {".ssh", ".aws", "gh", ".netrc"}
    assert Policy.make("workspace-write", tmp_path / "project", tmp_path / "none", hide_secrets=False).hidden == ()
    inside = Policy.make("workspace-write", tmp_path / ".config/gh", tmp_path / "none")
    assert "gh" not in {path.name for path in inside.hidden}  # the folder a person opened


def test_variables_that_look_like_keys_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {
        "OPENAI_API_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_ACCESS_KEY_ID": "x", "GITHUB_TOKEN": "x",
        "NPM_TOKEN": "x",
        "DB_PASSWORD": "x", "PGPASSWORD": "x", "MY_CREDENTIALS": "x", "DATABASE_URL": "postgres://u:p@host/db",
        "PLAIN": "sk-abc",
        "GH_PAT": "x", "SENTRY_DSN": "x", "SSL_PRIVATE": "x",
    }  # fmt: skip
    for name, value in {**secret, "EDITOR": "vi", "KEYBOARD": "us", "BASH_ENV": "x", "GOPATH": "/go"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", ".::node_modules/.bin:/usr/bin:/bin")
    seen = command_environment("all", [], {})
    assert not set(secret) & set(seen) and "BASH_ENV" not in seen
    assert seen["EDITOR"] == "vi" and seen["KEYBOARD"] == "us" and seen["PATH"] == "/usr/bin:/bin"
    assert set(withheld(seen)) >= set(secret)
    assert set(secret) <= set(command_environment("all", [], {}, secrets=True))
    assert command_environment("all", [], {"NPM_TOKEN": "mine"})["NPM_TOKEN"] == "mine"


async def test_status_says_what_is_hidden(workspace: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "x")
    async with serving([say("ok")]) as running:
        async with agent_on(running, workspace, "sandbox_mode=read-only") as watch:
            said = watch.agent.status().sandbox
    assert "SOME_API_KEY" in said and str(home) in said


# --- protected names, two sessions ---


@each_backend
def test_a_session_stays_protected_when_another_ends(tmp_path: Path, make: Callable[[], Sandbox]) -> None:
    world = World(tmp_path)
    first, second = make(), make()
    policy = world.policy("plain")
    try:
        world.run(first, "true", policy)
        launch = second.launch(
            ["bash", "-c", "echo ready; read x; mkdir -p .git; echo x > .git/config; ls -d .git"], policy, world.plain
        )
        command = subprocess.Popen(
            launch.argv, pass_fds=launch.pass_fds, cwd=world.plain, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**world.environment(), **launch.environment},
        )  # fmt: skip
        for descriptor in launch.pass_fds:
            os.close(descriptor)
        assert command.stdout is not None
        assert command.stdout.readline() == b"ready\n"
        first.close()
        command.communicate(b"go\n")
        assert not (world.plain / ".git/config").exists()
        second.close()
        assert sorted(path.name for path in world.plain.iterdir()) == ["src"]
    finally:
        first.close()
        second.close()
        world.close()


# --- locks and searches that never end ---


def test_a_held_lock_does_not_stop_the_screen(home: Path) -> None:
    records = ProjectRecords(home)
    records.set_trusted(Path("/a"), True)
    with open(home / "projects.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FulgurError, match="locked"):
            records.set_trusted(Path("/b"), True)
    records.set_trusted(Path("/b"), True)
    assert records.trusted(Path("/b"))


async def test_a_search_that_never_ends_is_ended(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.begin, "program", lambda name, *avoid: None)
    monkeypatch.setattr(reading, "_MOST_SECONDS", 3.0)
    (workspace / "a.txt").write_text("a" * 60 + "\n")
    beats: list[int] = []

    async def beat() -> None:
        while True:
            beats.append(threading.active_count())
            await asyncio.sleep(0.02)

    ticking = asyncio.create_task(beat())
    with pytest.raises(FulgurError, match="took over 3 s"):
        await search_text("(a+)+$b", workspace, workspace, None, 10)
    ticking.cancel()
    monkeypatch.setattr(reading, "_MOST_SECONDS", PATIENCE)
    assert len(beats) > 10  # the event loop went on meanwhile
    assert [match.line for match in await search_text("a{60}", workspace, workspace, None, 10)] == [1]


def test_ask_with_hostile_ignore_rules(workspace: Path, home: Path) -> None:
    (workspace / "main.py").write_text("def greet(): pass\n")
    (workspace / ("a" * 250)).write_text("")
    (workspace / ".gitignore").write_text("*a" * 17 + "b\n" + "(" * 300_000 + "\n")
    command = start.python("fulgur", "ask", "-C", str(workspace), "greet")
    assert "main.py:1" in subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout


def test_an_image_that_claims_to_be_huge_is_not_read_whole(home: Path, workspace: Path) -> None:
    image = workspace / "shot.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    os.truncate(image, 64 << 30)
    files, _ = bench(workspace, home)
    with pytest.raises(FulgurError, match="too large"):
        read_images(images_named("see @shot.png"), files)


def test_a_folder_of_the_project_is_no_embedded_model(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = embedded_models()
    if not models:
        pytest.skip("no embedded model is here")
    (workspace / models[0].name).mkdir()
    monkeypatch.chdir(workspace)
    assert model_folder(models[0].name) == models[0]
    assert model_folder(f"./{models[0].name}") == Path(models[0].name)


@pytest.mark.parametrize(
    ("suffix", "source"),
    [
        ("js", b"x = " + b"(" * 300_000),
        ("py", b"class A:\n  def f(self):\n    x = " + b"[" * 300_000),
        ("c", b"int f(){" * 30_000),
        ("tsx", b"<a" * 150_000),
        ("js", b"<" * 300_000),
    ],
)
def test_a_file_made_to_be_slow_to_parse_is_left_out(suffix: str, source: bytes) -> None:
    """Parsers and queries take the square of what is broken: minutes for these. Time here is the suite's own limit."""
    assert symbols_in(source, suffix) == []
    assert symbols_in(b"def f():\n    pass\n\nx = = 2\n", "py")  # as while typing
