"""One refactoring by one other tool, in an environment that has it: `python worker.py TOOL CASE.json`.

The case names the folder, the file, the kind and its words. The files are changed in place. Prints one JSON object with
the seconds it took and why it was refused, if it was.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Case = dict[str, Any]


class Missing(Exception):
    """The tool has no such refactoring."""


def offset_of(text: str, case: Case) -> int:
    """Where the name is in its definition."""
    name = case["name"].rpartition(".")[2]
    found = re.compile(rf"\b(?:def|class)\s+({re.escape(name)})\b").search(text, case["start"])
    assert found is not None
    return found.start(1)


def position(text: str, offset: int) -> tuple[int, int]:
    """Line from 1, column from 0."""
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1)


def stripped(text: str, case: Case) -> tuple[int, int]:
    """The lines to extract, without surrounding white space."""
    start, end = case["start"], case["end"]
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def rope(case: Case) -> None:
    from rope.base.project import Project
    from rope.refactor.extract import ExtractMethod
    from rope.refactor.inline import create_inline
    from rope.refactor.move import create_move
    from rope.refactor.rename import Rename

    folder, file = Path(case["folder"]), Path(case["path"])
    project = Project(str(folder), ropefolder=None)
    resource = project.get_file(str(file.relative_to(folder)))
    text = file.read_text()
    if case["kind"] == "renames":
        changes = Rename(project, resource, offset_of(text, case)).get_changes(case["new"])
    elif case["kind"] == "moves":
        target = file.with_name("moved_here.py")
        target.touch()
        goal = project.get_file(str(target.relative_to(folder)))
        changes = create_move(project, resource, offset_of(text, case)).get_changes(goal)
    elif case["kind"] == "extracts":
        changes = ExtractMethod(project, resource, *stripped(text, case)).get_changes(case["new"])
    elif case["kind"] == "inlines":
        changes = create_inline(project, resource, offset_of(text, case)).get_changes()
    else:
        raise Missing
    project.do(changes)


def jedi(case: Case) -> None:
    import jedi as tool

    file = Path(case["path"])
    text = file.read_text()
    script = tool.Script(path=file, project=tool.Project(case["folder"]))
    if case["kind"] == "renames":
        line, column = position(text, offset_of(text, case))
        script.rename(line, column, new_name=case["new"]).apply()
    elif case["kind"] == "extracts":
        start, end = (position(text, at) for at in stripped(text, case))
        script.extract_function(*start, new_name=case["new"], until_line=end[0], until_column=end[1]).apply()
    else:
        raise Missing


def libcst(case: Case) -> None:
    import libcst as cst
    from libcst.codemod import CodemodContext
    from libcst.codemod.commands.rename import RenameCommand

    if case["kind"] != "renames" or "." in case["name"]:
        raise Missing
    folder = Path(case["folder"])
    module = ".".join(Path(case["path"]).relative_to(folder / case["source"]).with_suffix("").parts)
    module = module.removesuffix(".__init__")
    for file in sorted(folder.rglob("*.py")):
        if ".venv" in file.parts:
            continue
        tree = cst.parse_module(file.read_text())
        context = CodemodContext(filename=str(file), full_module_name=module)
        command = RenameCommand(context, f"{module}.{case['name']}", f"{module}.{case['new']}")
        after = command.transform_module(tree).code
        if after != tree.code:
            file.write_text(after)


def basedpyright(case: Case) -> None:
    if case["kind"] != "renames":
        raise Missing
    file, text = Path(case["path"]), Path(case["path"]).read_text()
    server = subprocess.Popen(
        [str(Path(sys.executable).with_name("basedpyright-langserver")), "--stdio"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        root = Path(case["folder"]).as_uri()
        ask(server, 1, "initialize", {
            "processId": None, "rootUri": root,
            "capabilities": {"workspace": {"workspaceEdit": {"documentChanges": True}}},
            "workspaceFolders": [{"uri": root, "name": "project"}],
        })  # fmt: skip
        send(server, {"method": "initialized", "params": {}})
        document = {"uri": file.as_uri(), "languageId": "python", "version": 1, "text": text}
        send(server, {"method": "textDocument/didOpen", "params": {"textDocument": document}})
        line, column = position(text, offset_of(text, case))
        edit = ask(server, 2, "textDocument/rename", {
            "textDocument": {"uri": file.as_uri()}, "position": {"line": line - 1, "character": column},
            "newName": case["new"],
        })  # fmt: skip
        if not edit:
            raise ValueError("no edit")
        changes = {d["textDocument"]["uri"]: d["edits"] for d in edit.get("documentChanges", ()) if "edits" in d}
        for uri, edits in (edit.get("changes") or changes).items():
            apply(Path(uri.removeprefix("file://")), edits)
    finally:
        server.kill()
        server.wait()


def send(server: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert server.stdin is not None
    data = json.dumps({"jsonrpc": "2.0", **message}).encode()
    server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
    server.stdin.flush()


def ask(server: subprocess.Popen[bytes], number: int, method: str, params: dict[str, Any]) -> Any:
    """Send a request and return its answer; requests from the server get an empty answer."""
    send(server, {"id": number, "method": method, "params": params})
    assert server.stdout is not None
    while True:
        size = 0
        while line := server.stdout.readline().strip():
            if line.lower().startswith(b"content-length"):
                size = int(line.split(b":")[1])
        message = json.loads(server.stdout.read(size))
        if message.get("id") == number and "method" not in message:
            if "error" in message:
                raise ValueError(message["error"]["message"])
            return message["result"]
        if "method" in message and "id" in message:
            items = message.get("params", {}).get("items", [])
            send(server, {"id": message["id"], "result": [None for _ in items] if items else None})


def apply(file: Path, edits: list[dict[str, Any]]) -> None:
    text = file.read_text()
    starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def at(place: dict[str, int]) -> int:
        return starts[place["line"]] + place["character"]

    for edit in sorted(edits, key=lambda e: at(e["range"]["start"]), reverse=True):
        text = text[: at(edit["range"]["start"])] + edit["newText"] + text[at(edit["range"]["end"]) :]
    file.write_text(text)


def main() -> None:
    case = json.loads(Path(sys.argv[2]).read_text())
    refused, began = "", time.perf_counter()
    try:
        {"rope": rope, "jedi": jedi, "libcst": libcst, "basedpyright": basedpyright}[sys.argv[1]](case)
    except Missing:
        refused = "-"
    except Exception as error:  # a tool refuses with any exception
        refused = f"{type(error).__name__}: {error}"[:200] or "refused"
    print(json.dumps({"seconds": time.perf_counter() - began, "refused": refused}))


if __name__ == "__main__":
    main()
