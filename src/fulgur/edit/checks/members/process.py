"""The agent's side of the member check: start the process early, send it requests, kill it when it is too slow."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fulgur.edit.checks.members.introduced import introduced
from fulgur.edit.checks.members.problem import Problem
from fulgur.errors import FulgurError
from fulgur.sandbox import start
from fulgur.sandbox.backend import Sandbox
from fulgur.sandbox.choose import choose
from fulgur.sandbox.policy import Policy
from fulgur.sandbox.secrets import without_secrets

MOST_SECONDS = 3.0
START_SECONDS = 10.0  # once per session, mostly while the model writes
_GRACE_SECONDS = 3.0  # the process enforces the limit itself, except while it reads one large file


@dataclass
class Checked:
    """Problems in the order they were found; `unchecked` says in words what was not checked, and why."""

    problems: list[Problem] = field(default_factory=list)
    unchecked: str = ""


class MemberCheck:
    """One process per session. It only reads; project code that it loads runs in the sandbox."""

    def __init__(self, policy: Policy) -> None:
        unconfined = policy.mode == "danger-full-access"
        self._policy = policy if unconfined else Policy.make("read-only", policy.workspace, policy.home)
        self._sandbox: Sandbox | None = None
        self._process: start.Process[bytes] | None = None
        self._ready = False
        self._rest = b""

    def warm(self) -> None:
        """Start the process so that it is ready in time for the edit; returns at once."""
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        if self._sandbox is None:
            self._sandbox = choose(self._policy)
        command = start.python("fulgur.edit.checks.members")
        launch = self._sandbox.launch(command, self._policy, self._policy.workspace)
        try:
            self._process = start.popen(
                launch.argv,
                self._policy.workspace,
                without_secrets(start.environment(launch.environment)),
                pass_fds=launch.pass_fds,
                stdin=start.PIPE,
                stdout=start.PIPE,
                stderr=start.DEVNULL,
                start_new_session=True,
            )
        finally:
            for descriptor in launch.pass_fds:
                os.close(descriptor)

    def check(self, path: Path, before: str, after: str, seconds: float | None = None) -> Checked:
        """Find what `after` introduces that does not exist. Blocks for little more than `seconds` (3) once warm."""
        seconds = seconds or MOST_SECONDS
        checked = Checked()
        late = ""
        with contextlib.suppress(SyntaxError):
            if not introduced(before, after):
                return checked
        try:
            self.warm()
            if not self._ready:
                late = f"its start took over {START_SECONDS:g} s"
                self._answer(time.monotonic() + START_SECONDS)
                self._ready = True
            late = f"it took over {seconds:g} s"
            request = {"workspace": str(self._policy.workspace), "path": str(path), "before": before, "after": after}
            assert self._process is not None and self._process.stdin is not None
            self._process.stdin.write(json.dumps({**request, "seconds": seconds}).encode() + b"\n")
            self._process.stdin.flush()
            deadline = time.monotonic() + seconds + _GRACE_SECONDS
            while not (message := self._answer(deadline)).get("done"):
                checked.problems.append(Problem(message["line"], message["name"], message["text"]))
            if left := message["left"]:
                checked.unchecked = f"{left} of {left + message['judged']} took over {seconds:g} s"
        except FulgurError as error:
            checked.unchecked = error.message
        except TimeoutError:
            checked.unchecked = late
            self._end()
        except (OSError, ValueError):
            checked.unchecked = "its process ended"
            self._end()
        return checked

    def close(self) -> None:
        """End the process and the sandbox."""
        self._end()
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _answer(self, deadline: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        output = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TimeoutError
                data = os.read(output, 65536)
                if not data:
                    raise OSError("it ended")
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _end(self) -> None:
        process, self._process = self._process, None
        self._ready, self._rest = False, b""
        if process is None:
            return
        if process.poll() is None:
            # Kill the whole group: bubblewrap's second process survives if the first is killed during start-up.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(start.TimeoutExpired):
            process.wait(1)  # do not wait for a process that is slow to die
