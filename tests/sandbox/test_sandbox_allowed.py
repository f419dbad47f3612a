"""What must work inside: a sandbox that refuses everything is of no use."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sandbox_world import LandlockWithoutMounts, World, each_backend

from fulgur.errors import FulgurError
from fulgur.sandbox import bubblewrap, choose, landlock
from fulgur.sandbox.backend import Probe, Sandbox
from fulgur.sandbox.policy import Policy


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


ALLOWED = {
    "change a file": "echo x > src/a.py && grep -q x src/a.py",
    "new file in a folder": "echo x > src/new && mkdir src/d && mv src/new src/d/",
    "symlink inside": "ln -s a.py src/l && cat src/l",
    "temporary files": 'f=$(mktemp) && echo x > "$f" && cat <<< here',
    "read outside": "cat /etc/passwd > /dev/null",
    "pipes and jobs": "seq 1000 | sort -n | tail -1 & wait",
    "python with processes": f"{sys.executable} -c 'import os, asyncio; asyncio.run(asyncio.sleep(0)); os.fork()'",
    "git reads": "git status >/dev/null 2>&1; git log >/dev/null 2>&1; test -d .git",
    "exit code": "exit 0",
}


@each_backend
@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(world: World, make: Callable[[], Sandbox], name: str) -> None:
    sandbox = make()
    code, output = world.run(sandbox, ALLOWED[name], world.policy("workspace-write"))
    sandbox.close()
    assert code == 0, output


@each_backend
def test_new_entries_at_the_top(world: World, make: Callable[[], Sandbox]) -> None:
    sandbox = make()
    script = "echo x > new.txt && mkdir -p build/deep && echo x > build/deep/a && mv new.txt other.txt && rm -r build"
    code, output = world.run(sandbox, script, world.policy("workspace-write"))
    sandbox.close()
    if make is LandlockWithoutMounts:
        assert code != 0 and not (world.workspace / "new.txt").exists()
    else:
        assert code == 0 and (world.workspace / "other.txt").read_text() == "x\n", output


@each_backend
def test_modes_inside(world: World, make: Callable[[], Sandbox]) -> None:
    code, output = world.run(
        make(), "chmod +x src/a.py && touch -d 2001-01-01 src/a.py", world.policy("workspace-write")
    )
    assert (code == 0) == (make is not LandlockWithoutMounts), output


@each_backend
def test_exit_code_and_folder(world: World, make: Callable[[], Sandbox]) -> None:
    code, output = world.run(make(), "pwd; exit 7", world.policy("workspace-write"))
    assert (code, output) == (7, f"{world.workspace}\n")


@each_backend
def test_network_when_allowed(world: World, make: Callable[[], Sandbox]) -> None:
    code, output = world.run(
        make(), 'exec 3<>"/dev/tcp/127.0.0.1/$PORT"', world.policy("workspace-write", network=True)
    )
    assert code == 0, output


@each_backend
def test_extra_roots(world: World, make: Callable[[], Sandbox]) -> None:
    policy = Policy.make("workspace-write", world.workspace, world.home, (world.outside / "folder",))
    world.run(make(), 'echo x > "$OUT/folder/inner"; echo x > "$OUT/file"', policy)
    assert (world.outside / "folder/inner").read_text() == "x\n"
    assert (world.outside / "file").read_text() == "safe\n"


@each_backend
def test_a_crowded_workspace(world: World, make: Callable[[], Sandbox]) -> None:
    for number in range(4000):
        (world.workspace / f"entry-with-a-long-name-{number:05d}").touch()
    code, output = world.run(make(), "echo x > entry-with-a-long-name-03999", world.policy("workspace-write"))
    assert code == 0, output


def test_name_holders_are_removed(world: World) -> None:
    if not bubblewrap.probe().usable:
        pytest.skip("no bubblewrap")
    sandbox = bubblewrap.Bubblewrap()
    world.run(sandbox, "true", world.policy("plain"))
    assert (world.plain / ".git").is_dir()
    sandbox.close()
    assert sorted(p.name for p in world.plain.iterdir()) == ["src"]


def test_landlock_says_when_it_is_stale(world: World) -> None:
    if not landlock.probe().usable:
        pytest.skip("no Landlock")
    sandbox = landlock.Landlock(mounts=False)
    world.run(sandbox, "true", world.policy("workspace-write"))
    assert not sandbox.stale()
    (world.workspace / "new.py").touch()
    assert sandbox.stale()
    sandbox.close()


def test_refusal_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "probe", lambda: Probe("bubblewrap", False, "`bwrap` is not installed"))
    monkeypatch.setattr(landlock, "probe", lambda: Probe("Landlock", False, "this kernel has no Landlock"))
    with tempfile.TemporaryDirectory() as folder:
        policy = Policy.make("workspace-write", Path(folder), Path(folder) / "h")
        with pytest.raises(FulgurError) as caught:
            choose.choose(policy)
        assert "`bwrap` is not installed; Landlock: this kernel has no Landlock" in caught.value.message
        assert "apt install bubblewrap" in str(caught.value.hint)
        assert "commands are refused" in choose.describe(policy)
        monkeypatch.setattr(landlock, "probe", lambda: Probe("Landlock", True, gaps=("no chmod",)))
        assert choose.choose(policy).name == "Landlock"
        said = "the sandbox is Landlock, since bubblewrap does not work (`bwrap` is not installed): no chmod"
        assert choose.shortcomings(policy) == said
        assert choose.choose(Policy.make("danger-full-access", Path(folder), Path(folder) / "h")).name == "none"


@pytest.mark.parametrize(
    ("mode", "path", "words"),
    [
        ("workspace-write", "workspace/a", None),
        ("workspace-write", "outside/a", "outside the workspace"),
        ("workspace-write", "workspace/.git/config", "protected"),
        ("workspace-write", "workspace/sub/.git/hooks/x", "protected"),
        ("workspace-write", "workspace/.fulgur/config.toml", "protected"),
        ("read-only", "workspace/a", "read-only"),
        ("danger-full-access", "outside/a", None),
    ],
)
def test_our_own_tools_keep_the_policy_too(tmp_path: Path, mode: str, path: str, words: str | None) -> None:
    (tmp_path / "workspace").mkdir()
    refusal = Policy.make(mode, tmp_path / "workspace", tmp_path / "home").refusal(tmp_path / path)  # type: ignore[arg-type]
    assert refusal is None if words is None else words in str(refusal)
