"""Ways out of the sandbox that were found later; like `tests/sandbox/test_sandbox_escapes.py`, on every backend."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from escape_attempts import ATTEMPTS, Attempt
from escape_more import MORE
from sandbox_world import World, each_backend, world_outside_tmp

from fulgur.sandbox.backend import Sandbox
from fulgur.sandbox.choose import Unconfined


@pytest.fixture
def world() -> Iterator[World]:
    yield from world_outside_tmp()


@pytest.mark.parametrize("attempt", MORE, ids=lambda attempt: attempt.name)
@each_backend
def test_attempt_fails(world: World, attempt: Attempt, make: Callable[[], Sandbox]) -> None:
    before = world.state(attempt.mode)
    sandbox = make()
    _, output = world.run(sandbox, attempt.script, world.policy(attempt.mode))
    sandbox.close()
    assert "ESCAPED" not in output
    assert world.state(attempt.mode) == before, output
    assert world.touched() == []
    assert world.left() == []


@pytest.mark.parametrize("attempt", [a for a in MORE if a.teeth], ids=lambda attempt: attempt.name)
def test_attempt_has_teeth(world: World, attempt: Attempt) -> None:
    before = world.state(attempt.mode)
    _, output = world.run(Unconfined(), attempt.script, world.policy(attempt.mode))
    strays = world.strays()
    for pid in strays:
        os.kill(pid, signal.SIGKILL)
    assert "ESCAPED" in output or world.state(attempt.mode) != before or world.touched() or strays, output


def test_there_are_enough_attempts() -> None:
    assert len({attempt.name for attempt in [*ATTEMPTS, *MORE]}) == len(ATTEMPTS) + len(MORE) >= 150
