"""Tool calls of one step: checked, approved, run (in parallel where that is safe) and answered one by one."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import structs

from fulgur.agent.loop.approvals import Answered, Approvals, Question
from fulgur.agent.loop.hooks import Hooks
from fulgur.agent.loop.planned import Planned
from fulgur.agent.loop.read_only import READ_ONLY_ENVIRONMENT
from fulgur.agent.session.history import Item, call_output
from fulgur.errors import FulgurError
from fulgur.protocol.agent import (
    AgentEvent,
    FileChanged,
    PlanChanged,
    PlanStep,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    Warned,
)
from fulgur.tools.base import BadCall, Tool, ToolResult
from fulgur.tools.shell import Shell, ShellArguments
from fulgur.tools.writing import PatchArguments, summary
from fulgur.workspace.files import Change, FileDiff, Files, diff_of
from fulgur.workspace.textfile import shown_text

_REWRITE = "rewrite"  # the tool name that hooks see for an edit without a tool call
_MOST_DIFF = 4000  # characters of what a hook changed, for the model
_PATCH_COMMAND = re.compile(r"\s*apply_patch\s+<<")


class StopTurn(Exception):
    """The person answered an approval with `stop`."""


@dataclass
class _Call:
    item: Item
    tool: Tool[Any] | None
    arguments: Any
    problem: str = ""


class Calls:
    """Runs the calls. `before_change` is awaited before the first tool that can change files."""

    def __init__(
        self,
        tools: list[Tool[Any]],
        shell: Shell,
        files: Files,
        approvals: Approvals,
        hooks: Hooks,
        emit: Callable[[AgentEvent], None],
        before_change: Callable[[], Awaitable[None]],
        note_change: Callable[[FileDiff], None],
        note_plan: Callable[[Sequence[PlanStep]], None],
    ) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._shell = shell
        self._files = files
        self._approvals = approvals
        self._hooks = hooks
        self._emit = emit
        self._before_change = before_change
        self._note_change = note_change
        self._note_plan = note_plan
        self.changed: dict[str, FileDiff] = {}
        """Files changed by our own tools in this turn; `before` is that of the turn's first change."""
        self.malformed_in_a_row = 0

    async def run(self, turn: int, items: list[Item], record: Callable[[list[Item]], None]) -> None:
        """Run all calls; record each output as soon as it is known. StopTurn if the person wants to stop."""
        parsed = [self._parse(item) for item in items]
        good = any(not call.problem for call in parsed)
        self.malformed_in_a_row = 0 if good else self.malformed_in_a_row + 1
        beside: list[_Call] = []
        for call in parsed:
            if call.problem or (call.tool is not None and call.tool.parallel):
                beside.append(call)
                continue
            await self._together(turn, beside, record)
            beside = []
            await self._together(turn, [call], record)
        await self._together(turn, beside, record)

    async def apply(self, turn: int, title: str, changes: list[Change]) -> str | None:
        """Apply one edit's changes, with approval like any other edit. None if it was not allowed, else what was left
        out of it."""
        left_out = ""
        planned = Planned.of(changes, self._files)
        question = self._approvals.about_change("", title, *planned.shown)
        if question is not None:
            answer = await self._asked(turn, question)
            if not answer.allows:
                return None
            changes, left_out = planned.accepted(answer)
        if refused := await self._hooks.before_tool(_REWRITE, json.dumps({"title": title, "paths": planned.shown[0]})):
            self._emit(Warned(message=refused))
            return None
        await self._before_change()
        diffs = await asyncio.to_thread(self._files.commit, changes)
        for diff in diffs:
            self._changed(turn, diff)
        await self._after_edits(turn, diffs, "")
        return left_out

    async def _planned(self, tool: Tool[Any], arguments: Any) -> Planned:
        assert tool.plan is not None
        return Planned.of(await asyncio.to_thread(tool.plan, arguments), self._files)

    def _changed(self, turn: int, diff: FileDiff, call_id: str = "") -> None:
        first = self.changed.get(diff.path)
        self.changed[diff.path] = diff if first is None else replace(diff, before=first.before)
        self._note_change(diff)
        self._emit(file_changed(turn, diff, call_id))

    async def _after_edits(self, turn: int, diffs: Sequence[FileDiff], call_id: str) -> str:
        """Run the after-edit hooks; return what the model should read. A hook, such as a formatter, may have changed
        the file."""
        told = []
        for diff in diffs if self._hooks.after_edits else []:
            if diff.after is None:
                continue
            told.append(await self._hooks.after_edit(diff.path))
            now = await asyncio.to_thread(self._now, diff.path)
            if now not in (diff.after, None):
                formatted = diff_of(diff.path, diff.after, now)
                self._changed(turn, formatted, call_id)
                told.append(f"[A hook changed {diff.path} after your edit]\n{formatted.diff[:_MOST_DIFF]}")
        return "\n".join(filter(None, told))

    def _now(self, path: str) -> bytes | None:
        try:
            return self._files.read(self._files.locate(path))
        except FulgurError:
            return None

    async def _together(self, turn: int, calls: list[_Call], record: Callable[[list[Item]], None]) -> None:
        async def one(call: _Call) -> None:
            output = await self._one(turn, call)
            record([call_output(str(call.item["call_id"]), output)])

        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(one(call))
        except* StopTurn:
            raise StopTurn from None

    def _parse(self, item: Item) -> _Call:
        name = str(item.get("name", ""))
        tool = self.tools.get(name)
        if tool is None:
            have = ", ".join(sorted(self.tools))
            return _Call(item, None, None, f"there is no tool named {name!r}; available: {have}")
        try:
            arguments = tool.parse(str(item.get("arguments", "")))
            patch = self.tools.get("apply_patch")
            if isinstance(arguments, ShellArguments) and patch is not None and _PATCH_COMMAND.match(arguments.command):
                # Models trained with Codex type the patch into the shell: they mean the tool.
                return _Call(item, patch, PatchArguments(patch=arguments.command.strip()))
            return _Call(item, tool, arguments)
        except BadCall as error:
            return _Call(item, tool, None, str(error))

    async def _one(self, turn: int, call: _Call) -> str:
        call_id, name = str(call.item["call_id"]), str(call.item.get("name", ""))
        arguments = str(call.item.get("arguments", ""))
        started = ToolStarted(turn=turn, call_id=call_id, name=name, title=f"{name} (malformed)", arguments=arguments)
        if call.tool is not None and not call.problem:
            tool = call.tool
            places = tuple(tool.places(call.arguments))
            started = structs.replace(started, title=tool.title(call.arguments), kind=tool.kind, places=places)
        title = started.title
        self._emit(started)
        began = time.perf_counter()

        def report(text: str) -> None:
            self._emit(ToolOutput(turn=turn, call_id=call_id, text=text))

        try:
            if call.problem or call.tool is None:
                result = ToolResult(False, f"Malformed call: {call.problem}")
            else:
                result = await self._allowed(turn, call_id, title, call.tool, call.arguments, report)
        except FulgurError as error:
            result = ToolResult(False, str(error))
        except OSError as error:
            result = ToolResult(False, f"{name}: {error}")
        for diff in result.diffs:
            self._changed(turn, diff, call_id)
        told = [await self._after_edits(turn, result.diffs, call_id)]
        if call.tool is not None and not call.problem:
            told.append(await self._hooks.after_tool(call.tool.name, arguments, result.ok, result.output))
        if any(told):
            result = replace(result, output="\n\n".join([result.output, *filter(None, told)]))
        if result.plan:
            self._note_plan(result.plan)
            self._emit(PlanChanged(turn=turn, steps=result.plan))
        self._emit(
            ToolFinished(
                turn=turn,
                call_id=call_id,
                name=name,
                ok=result.ok,
                output=result.output,
                seconds=round(time.perf_counter() - began, 3),
            )
        )
        return result.output

    async def _allowed(
        self, turn: int, call_id: str, title: str, tool: Tool[Any], arguments: Any, report: Callable[[str], None]
    ) -> ToolResult:
        """Ask the hooks, then the person if needed, then run the tool."""
        if refused := await self._hooks.before_tool(tool.name, msgspec.json.encode(arguments).decode()):
            return ToolResult(False, refused)
        if isinstance(arguments, ShellArguments):
            return await self._command(turn, call_id, arguments, report)
        question: Question | None = None
        answer = Answered("once")
        planned = Planned([], [], [])
        if tool.schema is not None:
            asked = f"{title} {json.dumps(arguments, ensure_ascii=False)}"
            question = self._approvals.about_tool(call_id, tool.name, asked)
        elif tool.plan is not None and self._approvals.asks_about_changes:
            planned = await self._planned(tool, arguments)
            question = self._approvals.about_change(call_id, title, *planned.shown)
        else:
            question = self._approvals.about_work(call_id, title, tool.asks(arguments))
        if question is not None:
            answer = await self._asked(turn, question)
        if not answer.allows:
            return ToolResult(False, "The person did not allow this.")
        # Do exactly what was shown: the files may have changed while the person read.
        if question is not None and tool.plan is not None and await self._planned(tool, arguments) != planned:
            return ToolResult(False, "The files changed meanwhile; nothing was changed. Read them again.")
        if tool.mutates:
            await self._before_change()
        if answer.rejected:
            changes, left_out = planned.accepted(answer)
            diffs = await asyncio.to_thread(self._files.commit, changes)
            return ToolResult(True, "\n".join([*summary(diffs), left_out]), diffs)
        return await tool.run(arguments, report)

    async def _command(
        self, turn: int, call_id: str, arguments: ShellArguments, report: Callable[[str], None]
    ) -> ToolResult:
        command, folder, outside = arguments.command, self._shell.folder, arguments.unsandboxed
        question = self._approvals.about_command(call_id, command, folder, unsandboxed=outside, reason=arguments.reason)
        if question is not None and not (await self._asked(turn, question)).allows:
            return ToolResult(False, "The person did not allow this command. Find another way, or ask.")
        await self._before_change()
        if question is None and not outside and not arguments.background and self._approvals.spared(command):
            return await self._shell.run_read_only(arguments, report, READ_ONLY_ENVIRONMENT)
        result = await self._shell.run(arguments, report, unconfined=outside)
        if result.ok or outside or arguments.background:
            return result
        again = self._approvals.about_failure(call_id, command, folder, result.output)
        if again is None:
            return result
        if self._approvals.allowed_outside(command, folder) or (await self._asked(turn, again)).allows:
            return await self._shell.run(arguments, report, unconfined=True)
        return result

    async def _asked(self, turn: int, question: Question) -> Answered:
        answer = await self._approvals.ask(turn, question)
        if answer.decision == "stop":
            raise StopTurn
        return answer


def file_changed(turn: int, diff: FileDiff, call_id: str = "") -> FileChanged:
    """Build the event for a changed file."""
    return FileChanged(
        turn=turn,
        path=diff.path,
        kind=diff.kind,
        diff=diff.diff,
        added=diff.added,
        removed=diff.removed,
        call_id=call_id,
        old=shown_text(diff.before),
        new=shown_text(diff.after),
    )
