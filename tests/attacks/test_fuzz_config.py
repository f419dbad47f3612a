"""A bit of a config file flips: another valid value, or an error that names the file. Never a traceback."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from fuzzing import enough, rounds

from fulgur.client import once
from fulgur.config.settings import load_settings
from fulgur.errors import FulgurError
from fulgur.server import app
from fulgur.server.config import load
from fulgur.server.state import Server

ROOT = Path(__file__).parents[2]
SETTINGS = """
model = "m"
approval_policy = "on-request"
sandbox_mode = "workspace-write"
project_doc_max_bytes = 32768
[features]
undo = true
[profiles.fast]
model = "n"
"""


def examples() -> bytes:
    """The server.toml of the documentation, with every kind of value."""
    text = (ROOT / "docs" / "server.md").read_text()
    [found] = [block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[server]" in block]
    return found.encode()


def flipped(data: bytes, generator: random.Random) -> bytes:
    place, bit = generator.randrange(len(data)), 1 << generator.randrange(8)
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


async def test_fuzz_a_bit_of_the_servers_config(tmp_path: Path, home: Path) -> None:
    file, told = tmp_path / "server.toml", 0
    whole = examples().replace("…".encode(), b"ab12")
    for seed, generator in rounds(200):
        file.write_bytes(flipped(whole, generator))
        try:
            config = load(file)
            app.check_bind(config, keyed=bool(config.keys))
            app.build(Server(config))
        except FulgurError as error:
            told += 1
            assert error.message, f"seed {seed}"
    enough(told, 50)


@pytest.mark.parametrize(
    "line",
    ["port = 70000", "port = -1", "max_body_mb = 0", "max_connections = 0", "store_days = -1", "max_held_mb = nan"],
)
def test_a_number_out_of_range_is_told_with_its_name(line: str, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(f"[server]\n{line}\n")
    with pytest.raises(FulgurError, match=rf"server\.toml: .*{line.split()[0]}"):
        load(file)


async def test_fuzz_a_bit_of_the_settings(home: Path, workspace: Path) -> None:
    file, told = home / "config.toml", 0
    for _, generator in rounds(200):
        file.write_bytes(flipped(SETTINGS.encode(), generator))
        try:
            load_settings(workspace)
        except FulgurError as error:
            told += 1
            assert "config.toml" in str(error)
    enough(told, 20)


async def test_fuzz_a_bit_of_the_note_of_a_running_server(home: Path) -> None:
    """Who reads it looks for a server elsewhere, or starts one."""
    whole = b'{"base_url":"http://127.0.0.1:1/v1","pid":4194303,"version":"' + app.VERSION.encode() + b'"}'
    for _, generator in rounds(200):
        (home / "server.json").write_bytes(flipped(whole, generator))
        url = once.running(home)
        assert url is None or not once.answers(url)
