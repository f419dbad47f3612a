"""Real projects to work on: source packages that no model here was trained on, fetched by exact version and hash.

The archives and an environment with pytest are cached; every evaluation unpacks a fresh copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from fulgur.edit.checks.tests import TestRun, pytest_command, read_run
from fulgur.errors import FulgurError
from fulgur.sandbox import start

TOOLS = ("pytest==8.4.2", "pyte==0.8.2")  # the tests' tools; pyte reads the screen of a program
TEST_SECONDS = 180.0
_FETCH_SECONDS = 600.0


@dataclass(frozen=True)
class Package:
    """A source package; `part`: its instructions are used to choose thresholds, to confirm them, or are fresh."""

    name: str
    version: str
    sha256: str
    part: str
    module: str
    tests: str  # the argument to pytest; empty when the tests need more than pytest
    source: str = "."  # the folder of the module

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.version}"


CHOOSE, CONFIRM, FRESH = "choose", "confirm", "fresh"
PACKAGES = {
    package.name: package
    for package in (
        Package("inflection", "0.5.1", "1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417", CHOOSE,
                "inflection", "test_inflection.py"),
        Package("semver", "3.1.1", "149b26cabada6f63212f97e94505d21578cb1d280cf714827f328d5e70765fea", CHOOSE,
                "semver", "tests", "src"),
        Package("unidiff", "1.0.1", "d9425bc516390c54743a1045b2c1c97f02d245a913a241dd499f958adb2df998", CHOOSE,
                "unidiff", "tests"),
        Package("voluptuous", "0.16.0", "006535e22fed944aec17bef6e8725472476194743c87bd233e912eb463f8ff05", CHOOSE,
                "voluptuous", "voluptuous/tests/tests.py"),
        Package("schedule", "1.2.2", "15fe9c75fe5fd9b9627f3f19cc0ef1420508f9f9a46f45cd0769ef75ede5f0b7", CONFIRM,
                "schedule", "test_schedule.py"),
        Package("xmltodict", "1.0.4", "6d94c9f834dd9e44514162799d344d815a3a4faec913717a9ecbfa5be1bb8e61", CONFIRM,
                "xmltodict", "tests"),
        Package("html2text", "2024.2.26", "05f8e367d15aaabc96415376776cdd11afd5127a77fce6e36afc60c563ca2c32", CONFIRM,
                "html2text", "test"),
        Package("addict", "2.4.0", "b3b2210e0e067a281f5646c8c5db92e99b7231ea8b0eb5f74dbdf9e259d4e494", CONFIRM,
                "addict", "test_addict.py"),
    )
}  # fmt: skip
# A second set for `fulgur eval edits --fresh`: no rule was written with these in view.
FRESH_PACKAGES = {
    package.name: package
    for package in (
        Package("roman", "5.2", "275fe9f46290f7d0ffaea1c33251b92b8e463ace23660508ceef522e7587cb6f", FRESH,
                "roman", "src/tests.py", "src"),
        Package("pytimeparse", "1.1.10", "ecf0ee613a72cb0b1d3d5404bd398a64266576fc36ccf3149178af6f2ec6f736", FRESH,
                "pytimeparse", "pytimeparse/tests/testtimeparse.py"),
        Package("titlecase", "2.2.0", "5d97ee51da37fb57c8753b79efa8edfdf3f10c0060de926efee970081e28d52f", FRESH,
                "titlecase", ""),
        Package("crontab", "1.0.5", "f80e01b4f07219763a9869f926dd17147278e7965a928089bca6d3dc80ae46d5", FRESH,
                "crontab", ""),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Project:
    """A package unpacked in its own folder, with an environment that can test it."""

    package: Package
    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / ".venv/bin/python")

    def run(self, code: str) -> str:
        """Run code that imports the package; returns the last line of the error, empty on success."""
        path = str(self.folder / self.package.source)
        argv = [self.python, "-c", f"import sys; sys.path.insert(0, {path!r})\n{code}"]
        try:
            done = start.run(argv, self.folder, seconds=60, env=start.environment({"PYTHONDONTWRITEBYTECODE": "1"}))
        except start.TimeoutExpired:
            return "it took over 60 s"
        if done.returncode == 0:
            return ""
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {done.returncode}"

    def imports(self) -> str:
        """The error of importing the package; empty on success."""
        return self.run(f"import {self.package.module}")

    def test(self) -> TestRun:
        """Run the package's own tests."""
        command = pytest_command(self.python, self.folder, [self.package.tests])
        try:
            done = start.run(["/bin/sh", "-c", command], self.folder, seconds=TEST_SECONDS)
        except start.TimeoutExpired:
            return TestRun(missing=f"they took over {TEST_SECONDS:g} s")
        return read_run(done.returncode, (done.stdout + done.stderr).decode(errors="replace"), timed_out=False)


def build(package: Package, into: Path) -> Project:
    """A fresh copy of the package under `into`; fetched when it is not in the cache."""
    folder = into / package.name
    archive = fetch(package)
    with tarfile.open(archive) as packed:
        packed.extractall(into, filter="data")
    unpacked = next(found for found in into.iterdir() if found.is_dir() and found.name.lower() == package.stem.lower())
    unpacked.rename(folder)
    # Override the package's pytest options: they may need plugins that are not installed.
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / ".gitignore").write_text(".venv\n", encoding="utf-8")
    (folder / ".venv").symlink_to(environment())
    return Project(package, folder)


def cache_folder() -> Path:
    """The folder for downloads. It is not in Fulgur's home, which sandboxed tests cannot see."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "fulgur" / "eval"


def fetch(package: Package) -> Path:
    """The package's archive in the cache, verified against the pinned hash."""
    cache = cache_folder() / "sdists"
    archive = cache / f"{package.stem}.tar.gz"
    if not archive.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        wanted = cache / f"{package.name}.txt"
        wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8")
        options = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "-q", "-d", str(cache), "-r", str(wanted)]
        _run(start.python("pip", "download", *options), f"pip could not fetch {package.stem}")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != package.sha256:
        raise FulgurError(f"{archive} does not have the pinned checksum", hint="Delete it; it is fetched again.")
    return archive


def environment() -> Path:
    """A Python environment with pytest, created once per set of tools."""
    folder = cache_folder() / ("python-" + hashlib.sha256(" ".join(TOOLS).encode()).hexdigest()[:8])
    ready = folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(start.python("venv", str(folder)), "the environment for the tests could not be created")
        install = [str(folder / "bin/python"), "-P", "-m", "pip", "install", "-q", *TOOLS]
        _run(install, f"pip could not fetch {' and '.join(TOOLS)}")
        ready.touch()
    return folder


def _run(argv: list[str], problem: str) -> None:
    done = start.run(argv, start.ROOT, seconds=_FETCH_SECONDS)
    if done.returncode:
        raise FulgurError(problem, hint=done.stderr.decode(errors="replace").strip()[-400:])
