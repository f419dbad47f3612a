"""Plan mode: a read-only model writes a task list, which the person edits before it runs."""

from __future__ import annotations

import re
from pathlib import Path

from fulgur.agent.crew.crew import Crew
from fulgur.agent.crew.roles import Role
from fulgur.agent.crew.tasks import Task, parse_tasks
from fulgur.errors import FulgurError
from fulgur.workspace.files import Change

_PROMPT = """You plan work for others and change nothing yourself. Look at the project first: read what the task
touches. Then answer with a task list in Markdown and nothing else, one line a task:

- [ ] [FAST] rename load to read_config in config.py #rename
- [ ] [DEEP] design the cache and write it to cache.py
  - [ ] [FAST] add docstrings to cache.py
- [ ] [DEEP] test both after: #rename, 2

[FAST] is for a small edit in one place, [DEEP] for everything that needs thought. A task indented under another one
waits for it; `after:` names others it waits for, by number or by #name. All else runs at the same time, so two tasks
that change the same lines must wait for each other. Each task is done by somebody who sees only its words: name files
and functions. As few tasks as the work needs."""

_TASK_LINE = re.compile(r"[ \t]*[-*] \[[ xX!]\] ")


async def make_plan(crew: Crew, wish: str, path: Path) -> list[Task]:
    """Write a task list for the wish to `path`, which must not exist yet; return its tasks."""
    if path.exists():
        raise FulgurError(f"{path} already exists", hint="Run it, remove it, or choose another name.")
    deep = crew.settings.text("router.deep") or ""
    role = Role("planner", _PROMPT, model=deep, tools=("read", "search", "list"), sandbox="read-only")
    finished, _ = await crew.run(role, wish)
    if finished.how != "done":
        hint = "This needs a model that chats and calls tools: -m NAME, or router.deep in the config."
        raise FulgurError(f"no plan was made ({finished.how}): {finished.text}", hint=hint)
    text = _list_in(finished.text)
    tasks = parse_tasks(text, "the plan")
    if not tasks:
        raise FulgurError("the model wrote no task list", hint=finished.text[:500])
    content = f"# {' '.join(wish.split())}\n\n{text}\n"
    await crew.change(lambda: [Change(path, None, content.encode())])
    return tasks


def _list_in(said: str) -> str:
    """Cut out the list: from the first task line to the last, with the indented lines below them."""
    lines = [line.rstrip() for line in said.splitlines()]
    places = [index for index, line in enumerate(lines) if _TASK_LINE.match(line)]
    if not places:
        return ""
    end = places[-1] + 1
    while end < len(lines) and lines[end].startswith((" ", "\t")):
        end += 1
    return "\n".join(lines[places[0] : end])
