"""Does the wheel work in an empty environment? `python tests/wheel_smoke.py dist/fulgur-*.whl`"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

UNWANTED = ("lab/", "tests/", "docs/")
SHOP = "def total(prices, basket, discount=0):\n    return sum(prices[name] for name in basket) - discount\n"


def main(wheel: Path) -> int:
    names = zipfile.ZipFile(wheel).namelist()
    stray = [name for name in names if name.startswith(UNWANTED) or name.endswith((".cpp", ".pyc"))]
    assert not stray, f"in the wheel, and should not be: {stray[:5]}"
    assert any(name.endswith(".cu") for name in names), "the CUDA sources are missing: they are compiled at run time"
    assert "fulgur/assets/web/main.js" in names, "the web app is missing"
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        venv.create(root / "venv", with_pip=True)
        subprocess.run([root / "venv/bin/pip", "install", "-q", wheel.resolve()], check=True)
        (root / "work").mkdir()
        (root / "work/shop.py").write_text(SHOP)
        environment = {**os.environ, "FULGUR_HOME": str(root / "home")}
        environment.pop("PYTHONPATH", None)

        def fulgur(*words: str) -> str:
            done = subprocess.run(
                [root / "venv/bin/fulgur", *words], cwd=root / "work", env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"fulgur {' '.join(words)}: {done.stdout}{done.stderr}"
            return done.stdout

        assert fulgur("--version").startswith("fulgur ")
        assert "60M" in fulgur("doctor")
        assert "+def total(prices, basket, discount=0, tax=0):" in fulgur(
            "edit", "shop.py:total", "add a parameter tax=0", "--write"
        )
        assert "tax=0" in (root / "work/shop.py").read_text()
        assert fulgur("complete", "shop.py:2:12", "--unsure").strip()
        os.kill(json.loads((root / "home/server.json").read_bytes())["pid"], signal.SIGTERM)  # else it stays an hour
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installs and works")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
