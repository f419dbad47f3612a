# ruff: noqa: E501
"""Nothing a command does reaches the channel by which the agent learns how commands end."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sandbox_world import each_backend
from waiting import PATIENCE

from fulgur.sandbox.backend import Sandbox
from fulgur.sandbox.policy import Policy
from fulgur.tools.environment import command_environment
from fulgur.tools.shell import Shell, ShellArguments

# Each is followed by `false` in a command of its own, which must be told to have failed with 1.
ATTACKS = {
    "bytes into every descriptor": r"for n in $(seq 3 255); do printf 'x\0' >&$n; done 2>/dev/null",
    "answers into every descriptor": r"""for n in $(seq 3 60); do printf '\x2e\0\0\0{"id": 2, "code": 0, "folder": "/", "kept": true}' >&$n; done 2>/dev/null""",
    "descriptor ten": r"printf 'x\0' >&10",
    "all descriptors closed": 'for n in $(seq 3 255); do eval "exec $n>&-"; done 2>/dev/null',
    "script read away": "cat <&255 >/dev/null 2>&1; cat <&254 >/dev/null 2>&1",
    "printf redefined": "printf() { builtin printf 'a 0 /\\0'; }",
    "builtin redefined": "builtin() { echo hidden; }; declare() { :; }; set() { :; }",
    "exit code variable": "readonly _fulgur_code=0",
    "prompt command": "PROMPT_COMMAND='exit 0'; BASH_ENV=/dev/null; ENV=x",
    "traps": "trap 'exit 0' DEBUG ERR RETURN EXIT",
    "host's descriptors": "for f in /proc/$PPID/fd/*; do printf 'x\\0' > $f; done 2>/dev/null",
    "host's memory": "echo x > /proc/$PPID/mem",
    "state file": "find /tmp ${TMPDIR:-/tmp} -name state 2>/dev/null | while read f; do printf 'x\\0y\\0z' > $f; done",
    "option noexec": "set -n",
    "options": "set -euo pipefail; shopt -s extglob nullglob; set -v; set -f",
    "verbose": "set -x",
    "odd function": "shopt -s extglob; f() { case $1 in @(a|b)) echo ab;; esac; }",
    "odd variables": "x=$'a\\nb\\x01\"'; declare -A m=([k]='v v'); readonly r=1; IFS=,",
    "shell stopped": "kill -STOP $$",
    "shell killed": "kill -9 $$",
    "host stopped": "kill -STOP $PPID; true",
    "host killed": "kill -9 $PPID; sleep 1",
    "group killed": "kill -9 0",
    "terminal hung up": "exec </dev/null >/dev/null 2>&1; stty sane; tset 2>/dev/null; true",
    "terminal settings": "stty raw -echo; stty cols 1 rows 1",
    "alias": "alias false=true; alias eval=true; shopt -s expand_aliases",
    "working folder gone": "mkdir -p d && cd d && rmdir ../d",
    "output without end": "(yes & sleep 0.2; kill %1) 2>/dev/null",
    "invalid bytes": "printf '\\xff\\xfe\\x00\\x1b[2J'; x=$'\\xff'",
    "unfinished": "echo 'open",
    "here document": "cat <<EOF\nunfinished",
}


@pytest.mark.parametrize("name", ATTACKS)
@each_backend
def test_the_next_command_is_told_right(workspace: Path, home: Path, make: Callable[[], Sandbox], name: str) -> None:
    async def work(shell: Shell) -> None:
        await run(shell, ATTACKS[name], timeout=1.5)
        if name == "builtin redefined":
            await run(shell, "unset -f builtin declare set")
        failed = await run(shell, "false")
        assert "[exit code 1]" in failed
        assert "seven" in await run(shell, "echo se''ven")
        assert "[exit code 7]" in await run(shell, "(exit 7)")

    using(make, workspace, home, work)


@each_backend
def test_state_stays(workspace: Path, home: Path, make: Callable[[], Sandbox]) -> None:
    (workspace / "a b").mkdir()

    async def work(shell: Shell) -> None:
        await run(
            shell, "cd 'a b'; X=\"1 '2\"; export Y=3; A=(x 'y z'); declare -A M=([k]=v); f() { echo f$1; }; umask 027"
        )
        await run(shell, "set -o pipefail; shopt -s nullglob; readonly R=5; export -f f; N=$'a\\nb'")
        told = await run(
            shell,
            "pwd; echo \"$X|$Y|${A[1]}|${M[k]}|$R|$N\"; f 1; umask; shopt -q nullglob && echo null; bash -c 'f 2'",
        )
        assert told == f"{workspace}/a b\n1 '2|3|y z|v|5|a\nb\nf1\n0027\nnull\nf2"
        assert await run(shell, "false | true") == "[exit code 1]"
        await run(shell, "sleep 300 & P=$!")
        assert await run(shell, "kill -0 $P && echo runs") == "runs"

    using(make, workspace, home, work)


def using(make: Callable[[], Sandbox], workspace: Path, home: Path, work: Any) -> None:
    async def main() -> None:
        sandbox = make()
        shell = Shell(sandbox, Policy.make("workspace-write", workspace, home), command_environment("all", [], {}))
        try:
            await asyncio.wait_for(work(shell), PATIENCE)
        finally:
            shell.close()
            sandbox.close()

    asyncio.run(main())


async def run(shell: Shell, command: str, timeout: float = 60.0) -> str:
    return (await shell.run(ShellArguments(command=command, timeout=timeout), lambda text: None)).output
