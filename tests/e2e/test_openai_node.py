from __future__ import annotations

import json
import subprocess
from pathlib import Path

from live_server import LiveServer
from test_openai_python import REPLIES


def test_node_client(node_modules: Path, tmp_path: Path) -> None:
    """JSON, SSE, chat, models, and a steered turn over the socket."""
    program = node_modules.parent / "client.mjs"
    program.write_text((Path(__file__).parent / "client.mjs").read_text())
    with LiveServer(*REPLIES, rate=400) as live:
        done = subprocess.run(["node", str(program), live.base_url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["text"] == seen["chat"] == "You said: hello"
    assert seen["streamed"] == "Seen." and seen["kinds"][-1] == "response.completed"
    assert seen["models"] == ["scripted"]
    assert seen["turned"] == "Turned round."
    assert seen["socket"].count("response.created") == 2
    assert "response.steer.accepted" in seen["socket"]
