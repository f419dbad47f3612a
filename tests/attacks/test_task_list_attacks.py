"""A task list in a folder that others may write to, /tmp for one."""

from __future__ import annotations

import os
from pathlib import Path

from agent_world import say, serving, settings_for

from fulgur.agent.crew.crew import Crew
from fulgur.agent.crew.run_tasks import TaskRun, alone
from fulgur.protocol.agent import AgentEvent


async def test_a_tick_is_not_written_through_a_link_that_waits_for_it(home: Path, workspace: Path) -> None:
    """Whoever guessed the name of the new file could have the list written over any file of the person."""
    shared = home.parent / "shared"
    shared.mkdir()
    path, victim = shared / "TASKS.md", home.parent / "victim"
    path.write_text("- [ ] say hello\r\n")
    path.chmod(0o640)
    victim.write_text("mine\n")
    for name in (f".TASKS.md.{os.getpid()}.tmp", "TASKS.md.part", "TASKS.md.tmp", ".TASKS.md.tmp"):
        (shared / name).symlink_to(victim)
    seen: list[AgentEvent] = []
    async with serving([say("Hello.")]) as server:
        settings = settings_for(server.base_url, workspace, "features.guards=false")
        with alone(settings, path) as (files, copies):
            crew = Crew(settings, files, seen.append, copies=copies)
            assert not crew.writes(path)
            try:
                assert await TaskRun(crew, path, seen.append).run()
            finally:
                await crew.close()
    assert victim.read_text() == "mine\n"
    assert path.read_bytes() == b"- [x] say hello\r\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert len(list(shared.iterdir())) == 5  # and nothing was left there
