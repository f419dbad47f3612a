"""Works through a task list: independent tasks run in parallel, one subagent each, and are ticked off in the file.

A task's changes and its tick are committed in one step, so a kill at any moment leaves both or neither; the next run
repeats what was under way. The file is read again before each start, so it may be edited during the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from fulgur.agent.crew.crew import Crew
from fulgur.agent.crew.roles import Role, find_roles
from fulgur.agent.crew.tasks import Key, Task, marked, parse_tasks, read_list
from fulgur.agent.route.rules import Side, decide, model_of
from fulgur.agent.route.rules import Task as RouteTask
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.agent import AgentEvent, MemberFinished, TasksChanged, TaskState, Warned
from fulgur.sandbox.policy import Policy
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Change, Files

_SIDES: dict[str, Side] = {"FAST": "fast", "DEEP": "deep"}


@dataclass
class _Result:
    how: str
    finished: MemberFinished | None = None


@dataclass
class TaskRun:
    """One run of one list."""

    crew: Crew
    path: Path
    emit: Callable[[AgentEvent], None]
    jobs: int = 4
    record: Callable[[MemberFinished], None] = lambda finished: None
    _running: dict[Key, asyncio.Task[_Result]] = field(default_factory=dict)
    _ended: dict[Key, _Result] = field(default_factory=dict)

    async def run(self) -> bool:
        """Run until no task can start; True when every task is done. Cancelling this stops the running tasks."""
        tasks = self._read()
        if not tasks:
            raise UsageError(f"{self.path} has no tasks", hint="A task is a line such as `- [ ] [FAST] rename …`")
        for task in tasks:
            self._role(task)  # report a wrong tag before anything runs
        self._tell(tasks)
        try:
            while True:
                tasks = self._read()
                for task in self._ready(tasks)[: self.jobs - len(self._running)]:
                    self._running[task.key] = asyncio.create_task(self._work(task, len(tasks)))
                self._tell(tasks)
                if not self._running:
                    return all(task.done for task in tasks)
                await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
                for key in [key for key, task in self._running.items() if task.done()]:
                    self._ended[key] = self._running.pop(key).result()
        finally:
            for running in self._running.values():
                running.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _read(self) -> list[Task]:
        return parse_tasks(read_list(self.path), str(self.path))

    def _ready(self, tasks: list[Task]) -> list[Task]:
        done = {task.number for task in tasks if task.done}
        begun = self._running.keys() | self._ended.keys()
        return [task for task in tasks if not task.done and task.key not in begun and task.after <= done]

    def _role(self, task: Task) -> Role:
        name, settings = f"task-{task.number}", self.crew.settings
        if side := _SIDES.get(task.tag.upper()):
            routed = settings.text("router.fast") or settings.text("router.deep")
            return Role(name, model=model_of(settings, side) if routed else "")
        if not task.tag:
            routed = settings.text("router.fast") and settings.text("router.deep")
            return Role(name, model=decide(RouteTask(task.prompt), settings).model if routed else "")
        roles = find_roles(settings)
        if task.tag not in roles:
            there = ", ".join(["FAST", "DEEP", *roles])
            raise UsageError(
                f"{self.path}, line {task.line + 1}: there is no role [{task.tag}]", hint=f"Roles: {there}"
            )
        return roles[task.tag]

    async def _work(self, task: Task, of: int) -> _Result:
        role = self._role(task)
        place = f"Your task is number {task.number} of {of} in {self.path.name}; others work on the rest."
        role = replace(role, prompt=f"{place}\n\n{role.prompt}".strip())
        finished: MemberFinished | None = None
        try:
            for _ in range(2):
                finished, merged = await self.crew.run(role, task.prompt, lambda: self._ticked(task, "x"))
                self.record(finished)
                if finished.how == "done" and not merged.conflicts and (merged.diffs or not finished.left_out):
                    self._tick_outside(task, "x")
                    return _Result("done", finished)
                if not merged.conflicts:
                    break  # on a conflict, try once more with the changed workspace
        except (FulgurError, OSError) as error:
            self.emit(Warned(message=f"task {task.number}: {error}"))
        await self.crew.change(lambda: self._ticked(task, "!"))
        self._tick_outside(task, "!")
        return _Result("failed", finished)

    def _ticked(self, task: Task, mark: str) -> list[Change]:
        """The tick as a change to commit together with the task's own."""
        if not self._inside:
            return []
        before = self.path.read_bytes()
        return [Change(self.path, before, marked(before.decode(), task.key, mark).encode())]

    def _tick_outside(self, task: Task, mark: str) -> None:
        """Tick a list that lies outside the workspace. Others may write to its folder, so the new file's name must be
        unpredictable."""
        if self._inside:
            return
        text = marked(self.path.read_bytes().decode(), task.key, mark)
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=".", delete=False) as part:
            part.write(text.encode())
            os.fchmod(part.fileno(), self.path.stat().st_mode & 0o777)
        os.replace(part.name, self.path)

    @property
    def _inside(self) -> bool:
        return self.crew.writes(self.path)

    def _tell(self, tasks: list[Task]) -> None:
        self.emit(TasksChanged(path=str(self.path), tasks=tuple(self._state(task) for task in tasks)))

    def _state(self, task: Task) -> TaskState:
        ended = self._ended.get(task.key)
        state = "done" if task.done else "running" if task.key in self._running else ended.how if ended else "open"
        finished = ended.finished if ended is not None else None
        return TaskState(
            number=task.number,
            text=task.text,
            tag=task.tag,
            state=state,
            after=tuple(sorted(task.after)),
            models=finished.models if finished is not None else (),
            seconds=finished.seconds if finished is not None else 0.0,
        )


@contextlib.contextmanager
def alone(settings: Settings, path: Path) -> Iterator[tuple[Files, Path]]:
    """Yield the files and a folder for the copies of one run; allow one run per list at a time. Roll back what a killed
    run left half done, and remove its copies."""
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    folder = settings.home / "tasks"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    copies = Path(tempfile.gettempdir()) / f"fulgur-tasks-{os.getuid()}-{name}"
    with open(folder / f"{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FulgurError(f"another run is already working on {path}") from None
        shutil.rmtree(copies, ignore_errors=True)
        copies.mkdir(mode=0o700)
        policy = Policy.make("workspace-write", settings.workspace, settings.home)
        files = Files(policy, BlobStore(settings.home / "blobs"), folder / f"{name}.journal")
        files.recover()
        try:
            yield files, copies
        finally:
            shutil.rmtree(copies, ignore_errors=True)
