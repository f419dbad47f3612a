"""Runs as a separate program inside the sandbox (`python -I -S shell_host.py REQUESTS ANSWERS`): one bash per command.

The exit code is what the kernel reports for that bash. Bash inherits no descriptor of the host, and the host cannot be
inspected, so nothing that a command does can reach the channel to the agent. The state kept from command to command
(folder, variables, functions, options; no aliases) is written by each bash at its end and read by the next; a command
that ends bash itself loses it. Imports nothing from the package, so that it starts fast and needs no path.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import string
import struct
import sys
import tempfile

_PR_SET_DUMPABLE = 4
_F_ADD_SEALS, _SEALED = 1033, 0x000F
_LARGEST_STATE = 8 << 20

# Bash sets these itself, or does not allow setting them.
_BASH_OWN = (
    "BASH*|COMP_*|DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|HISTCMD|HOSTTYPE|LINENO|MACHTYPE|OLDPWD|OPTERR|OPTIND|OSTYPE|"
    "PIPESTATUS|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_|_fulgur_*"
)
_ALL_NAMES = " ".join(f'"${{!{letter}@}}"' for letter in string.ascii_letters + "_")

_SCRIPT = """BASH_ARGV0=bash
set -m; trap : INT
%(state)s
eval %(command)s
_fulgur_code=$?
{ builtin printf '%%s\\0' "$PWD"
builtin shopt -p
for _fulgur_name in %(names)s; do
case $_fulgur_name in %(own)s) ;; *) builtin declare -p "$_fulgur_name" ;; esac
done
builtin declare -f; builtin declare -Fx; builtin umask -p; builtin set +o
builtin printf '\\0'; } >| %(file)s 2>/dev/null
exit $_fulgur_code
"""


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


class Host:
    """Runs commands one after the other in the terminal that is its standard input."""

    def __init__(self, environment: "dict[str, str]") -> None:
        self._environment = environment
        self._start = self._folder = os.getcwd()
        self._state = ""
        self._private = tempfile.mkdtemp(prefix="fulgur-shell-", dir=environment.get("TMPDIR"))

    def run(self, command: str) -> "tuple[int, str, bool]":
        """Run a command; return the exit code, the folder it ended in, and whether its state was kept."""
        file = os.path.join(self._private, "state")
        with contextlib.suppress(OSError):
            os.unlink(file)
        os.makedirs(self._private, mode=0o700, exist_ok=True)
        code = self._wait_for(self._bash(command, file))
        kept = self._read(file)
        if not kept:
            self._state = ""
        return code, self._folder, kept

    def close(self) -> None:
        """Remove the private folder."""
        shutil.rmtree(self._private, ignore_errors=True)

    def _bash(self, command: str, file: str) -> int:
        text = _SCRIPT % {
            "state": self._state,
            "command": _quote(command),
            "names": _ALL_NAMES,
            "own": _BASH_OWN,
            "file": _quote(file),
        }
        # Sealed, so that no process of an earlier command can change what this one runs.
        script = os.memfd_create("command", os.MFD_ALLOW_SEALING)
        with os.fdopen(os.dup(script), "wb") as writer:
            writer.write(text.encode("utf-8", "surrogateescape"))
        fcntl.fcntl(script, _F_ADD_SEALS, _SEALED)
        child = os.fork()
        if child == 0:
            try:
                self._become_bash(script)
            except BaseException as error:
                os.write(2, f"shell: {error}\n".encode())
            finally:
                os._exit(126)
        os.close(script)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        _give_terminal(child)
        return child

    def _become_bash(self, script: int) -> None:
        os.setpgid(0, 0)
        _give_terminal(os.getpid())
        for number in (signal.SIGINT, signal.SIGTTOU, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.chdir(self._folder)
        except OSError:
            os.chdir(self._start)
        os.set_inheritable(script, True)
        os.execvpe("bash", ["bash", "--noprofile", "--norc", f"/dev/fd/{script}"], self._environment)

    def _wait_for(self, child: int) -> int:
        _, status = os.waitpid(child, 0)
        _give_terminal(os.getpgrp())
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def _read(self, file: str) -> bool:
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as reader:
                folder, state, rest = reader.read(_LARGEST_STATE).split(b"\0")
        except (OSError, ValueError):
            return False
        if rest or not folder.startswith(b"/"):
            return False
        self._folder = os.fsdecode(folder)
        # Ignore errors while restoring (a variable that was made read-only, for example).
        self._state = f"eval {_quote(state.decode('utf-8', 'surrogateescape') + 'set +v')} 2>/dev/null"
        return True


def _give_terminal(group: int) -> None:
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, group)


def _receive(descriptor: int) -> "dict | None":  # type: ignore[type-arg]
    header = _exactly(descriptor, 4)
    body = _exactly(descriptor, struct.unpack("=I", header)[0]) if header else b""
    return json.loads(body) if body else None


def _exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(descriptor, size - len(data))
        if not part:
            return b""
        data += part
    return data


def main() -> None:
    """Answer requests until there are no more."""
    requests, answers = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTTOU, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    first = _receive(requests)
    if first is None:
        return
    host = Host(first["environment"])
    try:
        while (request := _receive(requests)) is not None:
            code, folder, kept = host.run(request["command"])
            answer = json.dumps({"id": request["id"], "code": code, "folder": folder, "kept": kept}).encode()
            os.write(answers, struct.pack("=I", len(answer)) + answer)
    finally:
        host.close()


if __name__ == "__main__":
    main()
