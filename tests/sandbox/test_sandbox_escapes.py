"""No attempt of the table gets out, by any backend there is; and each would, were there no sandbox."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from escape_attempts import ATTEMPTS, Attempt
from sandbox_world import World, each_backend, world_outside_tmp
from waiting import wait_until

from fulgur.sandbox.backend import Sandbox
from fulgur.sandbox.choose import Unconfined


@pytest.fixture
def world() -> Iterator[World]:
    yield from world_outside_tmp()


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
@each_backend
def test_attempt_fails(world: World, attempt: Attempt, make: Callable[[], Sandbox]) -> None:
    before = world.state(attempt.mode)
    sandbox = make()
    _, output = world.run(sandbox, attempt.script, world.policy(attempt.mode))
    if "&" in attempt.script.replace("&&", "").replace("2>&1", ""):
        world.settle()
    sandbox.close()
    assert "ESCAPED" not in output
    assert world.state(attempt.mode) == before, output
    assert world.touched() == []
    assert world.left() == []


@pytest.mark.parametrize("attempt", [a for a in ATTEMPTS if a.teeth], ids=lambda attempt: attempt.name)
def test_attempt_has_teeth(world: World, attempt: Attempt) -> None:
    before = world.state(attempt.mode)
    _, output = world.run(Unconfined(), attempt.script, world.policy(attempt.mode))

    def bitten() -> object:
        return "ESCAPED" in output or world.state(attempt.mode) != before or world.touched() or world.strays()

    if "&" in attempt.script.replace("&&", "").replace("2>&1", ""):
        wait_until(bitten)
    found = bitten()
    for pid in world.strays():
        os.kill(pid, signal.SIGKILL)
    assert found, output


def test_there_are_enough_attempts() -> None:
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 30
