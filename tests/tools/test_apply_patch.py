"""Cases are folders: `input/` with `patch.txt` becomes `expected/`; where there is an `error.txt`, nothing changes."""

import difflib
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulgur.errors import FulgurError
from fulgur.sandbox.policy import Policy
from fulgur.tools.apply_patch import plan_patch
from fulgur.tools.patch_parse import PatchError, parse_patch
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Files
from fulgur.workspace.textfile import TextFile

CASES = sorted(path.name for path in (Path(__file__).parent / "patches").iterdir() if path.is_dir())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, files: Files, workspace: Path) -> None:
    case = Path(__file__).parent / "patches" / name
    shutil.copytree(case / "input", workspace, dirs_exist_ok=True)
    patch = (case / "patch.txt").read_bytes().decode()
    error = case / "error.txt"
    if error.exists():
        with pytest.raises(FulgurError) as caught:
            files.commit(plan_patch(patch, files).changes)
        assert error.read_text().strip() in str(caught.value)
    else:
        files.commit(plan_patch(patch, files).changes)
    assert contents(workspace) == contents(case / "expected")


def test_mode_stays(files: Files, workspace: Path) -> None:
    script = workspace / "run.sh"
    script.write_text("one\n")
    script.chmod(0o751)
    patch = "*** Begin Patch\n*** Update File: run.sh\n@@\n-one\n+two\n*** End Patch\n"
    files.commit(plan_patch(patch, files).changes)
    assert script.stat().st_mode & 0o7777 == 0o751
    move = "*** Begin Patch\n*** Update File: run.sh\n*** Move to: go.sh\n@@\n-two\n+three\n*** End Patch\n"
    files.commit(plan_patch(move, files).changes)
    assert (workspace / "go.sh").stat().st_mode & 0o7777 == 0o751


def test_symlink_inside_is_written_through(files: Files, workspace: Path) -> None:
    (workspace / "real").write_text("one\n")
    (workspace / "link").symlink_to("real")
    files.commit(plan_patch("*** Begin Patch\n*** Update File: link\n@@\n-one\n+two\n*** End Patch", files).changes)
    assert (workspace / "link").is_symlink()
    assert (workspace / "real").read_text() == "two\n"


def test_symlink_outside_is_refused(files: Files, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("one\n")
    (workspace / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(FulgurError, match="outside the workspace"):
        plan_patch("*** Begin Patch\n*** Update File: link\n@@\n-one\n+two\n*** End Patch", files)


def test_notes_say_how_it_matched(files: Files, workspace: Path) -> None:
    (workspace / "a").write_text("x  \ny\n")
    planned = plan_patch("*** Begin Patch\n*** Update File: a\n@@\n x\n-y\n+z\n*** End Patch", files)
    assert planned.notes == ["a, hunk 1: matched ignoring spaces at line ends"]


def test_all_or_nothing_when_a_write_fails(files: Files, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (workspace / name).write_text("1\n")
    patch = "*** Begin Patch\n" + "".join(f"*** Update File: {n}\n@@\n-1\n+2\n" for n in "abc") + "*** End Patch"
    planned = plan_patch(patch, files)
    rename, count = os.rename, 0

    def fail_third(*args: object, **kwargs: object) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(28, "No space left on device")
        rename(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", fail_third)
    with pytest.raises(FulgurError, match="No space left on device; nothing was changed"):
        files.commit(planned.changes)
    assert contents(workspace) == {"a": b"1\n", "b": b"1\n", "c": b"1\n"}


def killed_in_the_middle(files: Files, workspace: Path) -> None:
    """A patch of three files whose process is killed before it writes the third."""
    (workspace / "a").write_text("1\n")
    (workspace / "b").write_text("1\n")
    patch = "*** Begin Patch\n*** Update File: a\n@@\n-1\n+2\n*** Add File: c\n+c\n*** Update File: b\n@@\n-1\n+2\n"
    planned = plan_patch(patch + "*** End Patch", files)
    pid = os.fork()
    if pid == 0:
        rename, count = os.rename, 0

        def die_third(*args: object, **kwargs: object) -> None:
            nonlocal count
            count += 1
            if count == 3:
                os.kill(os.getpid(), 9)
            rename(*args, **kwargs)  # type: ignore[arg-type]

        os.rename = die_third  # type: ignore[assignment]
        files.commit(planned.changes)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == 9
    assert contents(workspace)["a"] == b"2\n"


def test_recovers_after_a_kill_in_the_middle(files: Files, workspace: Path) -> None:
    killed_in_the_middle(files, workspace)
    assert sorted(files.recover()) == ["a", "c"]
    left = {name: data for name, data in contents(workspace).items() if not name.endswith(".tmp")}
    assert left == {"a": b"1\n", "b": b"1\n"}
    assert files.recover() == []


def test_a_file_edited_after_the_kill_is_not_put_back(files: Files, workspace: Path) -> None:
    killed_in_the_middle(files, workspace)
    (workspace / "a").write_text("by hand\n")
    (workspace / "b").unlink()
    assert files.recover() == ["c"]
    left = {name: data for name, data in contents(workspace).items() if not name.endswith(".tmp")}
    assert left == {"a": b"by hand\n"}


def test_a_file_changed_meanwhile_is_not_overwritten(files: Files, workspace: Path) -> None:
    (workspace / "a").write_text("1\n")
    planned = plan_patch("*** Begin Patch\n*** Update File: a\n@@\n-1\n+2\n*** End Patch", files)
    (workspace / "a").write_text("mine\n")
    with pytest.raises(FulgurError, match="changed since it was read"):
        files.commit(planned.changes)
    assert (workspace / "a").read_text() == "mine\n"


def test_a_folder_swapped_for_a_link_is_not_followed(files: Files, workspace: Path, tmp_path: Path) -> None:
    (workspace / "d").mkdir()
    planned = plan_patch("*** Begin Patch\n*** Add File: d/new\n+x\n*** End Patch", files)
    (tmp_path / "outside").mkdir()
    (workspace / "d").rmdir()
    (workspace / "d").symlink_to(tmp_path / "outside")
    with pytest.raises(FulgurError, match="nothing was changed"):
        files.commit(planned.changes)
    assert list((tmp_path / "outside").iterdir()) == []


@given(st.binary().filter(lambda data: b"\0" not in data or data[:2] in (b"\xff\xfe", b"\xfe\xff")))
def test_any_text_is_written_back_as_it_was(data: bytes) -> None:
    try:
        file = TextFile.decode(data, "x")
    except FulgurError:
        return
    assert file.encode("x") == data
    file.replace(0, 0, [])
    assert file.encode("x") == data


def patch_between(old: list[str], new: list[str]) -> str:
    """A patch with three lines of context, as a careful model would write it."""
    body = ["*** Begin Patch", "*** Update File: f"]
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(3):
        body.append("@@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                body += [f" {line}" for line in old[i1:i2]]
                continue
            body += [f"-{line}" for line in old[i1:i2]]
            body += [f"+{line}" for line in new[j1:j2]]
    return "\n".join([*body, "*** End Patch"])


@settings(deadline=None)
@given(st.data())
def test_any_edit_of_a_file_can_be_patched(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Lines are unique, so there is one right place for every hunk; endings and the last newline stay."""
    count = data.draw(st.integers(1, 30))
    old = [f"{'    ' * data.draw(st.integers(0, 2))}line {n}" for n in range(count)]
    new: list[str] = []
    for line in old:
        action = data.draw(st.sampled_from("kkkkdri"))
        new += {"k": [line], "d": [], "r": [f"{line}!"], "i": [line, f"{line}+"]}[action]
    newline = data.draw(st.sampled_from(["\n", "\r\n"]))
    ending = data.draw(st.sampled_from(["", newline]))
    if old == new or not new:
        return
    if count == 1 and not ending:
        newline = "\n"  # the file does not show which it has
    folder = tmp_path_factory.mktemp("patched")
    policy = Policy.make("workspace-write", folder, folder.parent / "home")
    files = Files(policy, BlobStore(folder.parent / "home/blobs"), folder.parent / "home/journal")
    (folder / "f").write_bytes((newline.join(old) + ending).encode())
    files.commit(plan_patch(patch_between(old, new), files).changes)
    assert (folder / "f").read_bytes() == (newline.join(new) + ending).encode()


@given(st.text(alphabet="*+- @\nabE", max_size=120))
def test_no_text_breaks_the_parser(text: str) -> None:
    for patch in (
        text,
        f"*** Begin Patch\n{text}\n*** End Patch",
        f"*** Begin Patch\n*** Update File: a\n{text}\n*** End Patch",
    ):
        try:
            parse_patch(patch)
        except PatchError as error:
            assert error.message


def test_the_end_of_a_patch_may_be_indented(files: Files, workspace: Path) -> None:
    (workspace / "f").write_text("one\n")
    files.commit(plan_patch("*** Begin Patch\n*** Update File: f\n@@\n-one\n+two\n  *** End Patch", files).changes)
    assert (workspace / "f").read_text() == "two\n"


@pytest.mark.parametrize("what", ["Delete File: link", "Update File: link\n*** Move to: new"])
def test_what_a_link_leads_to_is_not_removed(what: str, files: Files, workspace: Path) -> None:
    (workspace / "real").write_text("one\n")
    (workspace / "link").symlink_to("real")
    with pytest.raises(PatchError, match="link is a link to real"):
        plan_patch(f"*** Begin Patch\n*** {what}\n*** End Patch", files)


def test_a_folder_is_named_as_one(files: Files, workspace: Path) -> None:
    (workspace / "d").mkdir()
    with pytest.raises(PatchError, match="d is a folder"):
        plan_patch("*** Begin Patch\n*** Delete File: d\n*** End Patch", files)


@pytest.mark.parametrize("before", [b"a\r\nb\r\n", b"a\nb", b"\xef\xbb\xbfa\nb\n"])
def test_a_change_of_line_endings_alone_is_shown(before: bytes, files: Files, workspace: Path) -> None:
    (workspace / "f").write_bytes(before)
    (diff,) = files.commit(plan_patch("*** Begin Patch\n*** Add File: f\n+a\n+b\n*** End Patch", files).changes)
    assert diff.diff == "Only line endings or the encoding of f modified\n"
