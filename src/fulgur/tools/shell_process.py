"""One bash in a pseudo-terminal inside the sandbox, kept between commands: folder, variables and jobs stay.

Commands come to bash through a pipe of their own, not through the terminal, so that they may be of any length and
what a program reads from the terminal is never a command. Their exit status and the folder come back through a second
pipe, which the commands themselves do not see.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import secrets
import shlex
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fulgur.sandbox.backend import Sandbox
from fulgur.sandbox.policy import Policy
from fulgur.tools.output import BoundedOutput

_GRACE = 1.0  # seconds between the interrupt and the kill


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. `exit_code` is None when it was stopped; `shell_ended` when bash itself is gone."""

    output: str
    exit_code: int | None
    timed_out: bool = False
    shell_ended: bool = False


class ShellProcess:
    """Starts with the first command; after it ended or was closed, `run` starts another in the same folder."""

    def __init__(self, sandbox: Sandbox, policy: Policy, environment: dict[str, str]) -> None:
        self._sandbox = sandbox
        self._policy = policy
        self._environment = environment
        self.folder = policy.workspace
        self._process: subprocess.Popen[bytes] | None = None
        self._terminal = self._commands = self._status = -1
        self._output = BoundedOutput()
        self._report: Callable[[str], None] | None = None
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    @property
    def alive(self) -> bool:
        """Whether bash runs."""
        return self._process is not None and self._process.poll() is None

    async def run(
        self, command: str, timeout: float, report: Callable[[str], None] | None = None, limit: int = 24_000
    ) -> CommandResult:
        """Run one command to its end, or to its time-out; `report` gets the output as it appears."""
        if not self.alive or self._sandbox.stale():
            self.close()
            self._start()
        self._output, self._report = BoundedOutput(limit), report
        token = secrets.token_hex(8)
        line = f'eval {shlex.quote(command)} 8>&-\nprintf \'%s %s %s\\0\' {token} "$?" "$PWD" >&8\n'
        await asyncio.to_thread(_write_all, self._commands, line.encode())
        try:
            async with asyncio.timeout(timeout):
                code = await self._wait_for(token)
            timed_out = False
        except TimeoutError:
            timed_out = True
            code = await self._interrupt(token)
        except asyncio.CancelledError:
            await self._interrupt(token)
            raise
        self._drain()
        ended = not self.alive
        if ended:
            self.close()
        return CommandResult(self._output.text(), None if timed_out else code, timed_out, ended)

    def type(self, text: str) -> None:
        """Type into the terminal of the running command."""
        if self.alive:
            os.write(self._terminal, text.encode())

    def close(self) -> None:
        """End bash and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        loop = asyncio.get_running_loop()
        for descriptor in (self._terminal, self._status):
            loop.remove_reader(descriptor)
        if process.poll() is None:
            # Landlock's supervisor ends its children at SIGTERM; a namespace dies with its first process.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
            for pid in _tree(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        for descriptor in (self._terminal, self._commands, self._status):
            os.close(descriptor)

    def _start(self) -> None:
        self._terminal, slave = pty.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[1] &= ~termios.OPOST  # output as the program wrote it
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        commands_read, self._commands = os.pipe()
        self._status, status_write = os.pipe()
        if not self.folder.is_dir():
            self.folder = self._policy.workspace
        # Descriptor 8 is where bash says how a command ended; its own copy of the commands' pipe is out of sight.
        first = f"exec {commands_read}<&-\n" + (
            "" if status_write == 8 else f"exec 8>&{status_write} {status_write}>&-\n"
        )
        _write_all(self._commands, f"{first}set -m; trap : INT\n".encode())
        bash = ["bash", "--noprofile", "--norc", f"/dev/fd/{commands_read}"]
        launch = self._sandbox.launch(bash, self._policy, self.folder)
        keep = (*launch.pass_fds, commands_read, status_write)
        try:
            self._process = subprocess.Popen(
                launch.argv,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                pass_fds=keep,
                cwd=self.folder,
                env={**self._environment, **launch.environment},
                start_new_session=True,
                preexec_fn=_take_terminal,
            )
        finally:
            for descriptor in (slave, *keep):
                os.close(descriptor)
        os.set_blocking(self._terminal, False)
        os.set_blocking(self._status, False)
        self._answers = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._terminal, self._drain)
        loop.add_reader(self._status, self._read_status)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    data = os.read(self._terminal, 65536)
                except OSError as error:
                    if isinstance(error, BlockingIOError):
                        raise
                    data = b""  # EIO: the last one closed the terminal
                if not data:
                    asyncio.get_running_loop().remove_reader(self._terminal)
                    return
                text = self._output.feed(data)
                if self._report is not None and text:
                    self._report(text)

    def _read_status(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._status, 65536)
            if not data:
                asyncio.get_running_loop().remove_reader(self._status)
            self._answers.put_nowait(data)

    async def _wait_for(self, token: str) -> int | None:
        """The exit code of the command; that of bash when it ended with the command."""
        buffer = b""
        while True:
            data = await self._answers.get()
            buffer += data
            while b"\0" in buffer:
                answer, _, buffer = buffer.partition(b"\0")
                got, code, folder = answer.decode(errors="surrogateescape").split(" ", 2)
                if got == token:
                    self.folder = Path(folder)
                    return int(code)
            if not data:
                assert self._process is not None
                return await asyncio.to_thread(self._process.wait)

    async def _interrupt(self, token: str) -> int | None:
        """Interrupt what runs in the foreground, kill it if it goes on, and bash too if it does not come back."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if not self.alive:
                return None
            with contextlib.suppress(OSError, ProcessLookupError):
                group = os.tcgetpgrp(self._terminal)
                if group > 0:
                    os.killpg(group, number)
            try:
                async with asyncio.timeout(_GRACE):
                    return await self._wait_for(token)
            except TimeoutError:
                continue
        self.close()
        return None


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _tree(top: int) -> list[int]:
    """A process and all below it, deepest last."""
    found = [top]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                found += [int(child) for child in children]
    return found
