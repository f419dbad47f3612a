"""One shell in a pseudo-terminal inside the sandbox: folder, variables and background processes persist.

`shell_host` runs there and starts a bash for each command. Commands reach it through a pipe, not the terminal, so they
can have any length, and what a program reads from the terminal is never a command. Results come back through a second
pipe. No command can reach either pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fulgur.sandbox import start
from fulgur.sandbox.backend import Sandbox
from fulgur.sandbox.policy import Policy
from fulgur.tools.output import BoundedOutput

_HOST = Path(__file__).with_name("shell_host.py")
_GRACE = 1.0  # seconds between the interrupt and the kill


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. `exit_code` is None if it was stopped; `shell_ended` if bash ended with it."""

    output: str
    exit_code: int | None
    timed_out: bool = False
    shell_ended: bool = False


class ShellProcess:
    """Starts with the first command; after it has ended or was closed, `run` starts another in the same folder."""

    def __init__(self, sandbox: Sandbox, policy: Policy, environment: dict[str, str]) -> None:
        self._sandbox = sandbox
        self._policy = policy
        self._environment = environment
        self.folder = policy.workspace
        self._process: start.Process[bytes] | None = None
        self._terminal = self._requests = self._answers = -1
        self._output = BoundedOutput()
        self._report: Callable[[str], None] | None = None
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._received = b""
        self._count = 0

    @property
    def alive(self) -> bool:
        """Whether the host is running."""
        return self._process is not None and self._process.poll() is None

    async def run(
        self, command: str, timeout: float, report: Callable[[str], None] | None = None, limit: int = 24_000
    ) -> CommandResult:
        """Run one command to its end or timeout; `report` gets the output as it appears."""
        if not self.alive or self._sandbox.stale():
            self.close()
            await self._start()
        self._output, self._report = BoundedOutput(limit), report
        self._count += 1
        with contextlib.suppress(BrokenPipeError):  # the host is gone: noticed below
            await asyncio.to_thread(_send, self._requests, {"id": self._count, "command": command})
        try:
            async with asyncio.timeout(timeout):
                code, kept = await self._answer()
            timed_out = False
        except TimeoutError:
            timed_out = True
            code, kept = await self._interrupt()
        except asyncio.CancelledError:
            await self._interrupt()
            raise
        self._drain()
        if not self.alive:
            self.close()
        return CommandResult(self._output.text(), None if timed_out else code, timed_out, not kept)

    def type(self, text: str) -> None:
        """Type into the terminal of the running command."""
        if self.alive:
            os.write(self._terminal, text.encode())

    def close(self) -> None:
        """End the host and everything it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        loop = asyncio.get_running_loop()
        for descriptor in (self._terminal, self._answers):
            loop.remove_reader(descriptor)
        if process.poll() is None:
            # Landlock's supervisor kills its children on SIGTERM; a namespace dies with its first process.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(start.TimeoutExpired):
                process.wait(2.0)
            for pid in _tree(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        for descriptor in (self._terminal, self._requests, self._answers):
            os.close(descriptor)

    async def _start(self) -> None:
        self._terminal, slave = os.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[1] &= ~termios.OPOST  # pass output through as the program wrote it
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        if not self.folder.is_dir():
            self.folder = self._policy.workspace
        host = start.script(_HOST, str(requests), str(answers))
        # In a thread, because finding the protected names of a large workspace takes a moment.
        try:
            launch = await asyncio.to_thread(self._sandbox.launch, host, self._policy, self.folder)
        except BaseException:
            for descriptor in (slave, self._terminal, requests, self._requests, self._answers, answers):
                os.close(descriptor)
            raise
        keep = (*launch.pass_fds, requests, answers)
        environment = {**self._environment, **launch.environment}
        try:
            self._process = start.popen(
                launch.argv,
                self.folder,
                environment,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                pass_fds=keep,
                start_new_session=True,
                preexec_fn=_take_terminal,
            )
        finally:
            for descriptor in (slave, *keep):
                os.close(descriptor)
        _send(self._requests, {"environment": environment})
        os.set_blocking(self._terminal, False)
        os.set_blocking(self._answers, False)
        self._arrived = asyncio.Queue()
        self._received = b""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._terminal, self._drain)
        loop.add_reader(self._answers, self._read_answers)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    data = os.read(self._terminal, 65536)
                except OSError as error:
                    if isinstance(error, BlockingIOError):
                        raise
                    data = b""  # EIO: the last process closed the terminal
                if not data:
                    asyncio.get_running_loop().remove_reader(self._terminal)
                    return
                text = self._output.feed(data)
                if self._report is not None and text:
                    self._report(text)

    def _read_answers(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._answers, 65536)
            if not data:
                asyncio.get_running_loop().remove_reader(self._answers)
            self._arrived.put_nowait(data)

    async def _answer(self) -> tuple[int | None, bool]:
        """The command's exit code, and whether its state was kept; the host's own exit code if it ended too."""
        while True:
            while len(self._received) >= 4:
                size = struct.unpack_from("=I", self._received)[0] + 4
                if len(self._received) < size:
                    break
                answer = json.loads(self._received[4:size])
                self._received = self._received[size:]
                if answer["id"] == self._count:  # else the answer belongs to a command that was given up
                    self.folder = Path(answer["folder"])
                    return int(answer["code"]), bool(answer["kept"])
            data = await self._arrived.get()
            self._received += data
            if not data:
                assert self._process is not None
                return await asyncio.to_thread(self._process.wait), False

    async def _interrupt(self) -> tuple[int | None, bool]:
        """Interrupt the foreground process, kill it if it goes on, and end the host too if it does not respond."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if not self.alive:
                return None, False
            with contextlib.suppress(OSError, ProcessLookupError):
                group = os.tcgetpgrp(self._terminal)
                if group > 0:
                    os.killpg(group, number)
            try:
                async with asyncio.timeout(_GRACE):
                    return await self._answer()
            except TimeoutError:
                continue
        self.close()
        return None, False


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _send(descriptor: int, message: dict[str, object]) -> None:
    body = json.dumps(message).encode()
    data = struct.pack("=I", len(body)) + body
    while data:
        data = data[os.write(descriptor, data) :]


def _tree(top: int) -> list[int]:
    """List a process and all below it, deepest last."""
    found = [top]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                found += [int(child) for child in children]
    return found
