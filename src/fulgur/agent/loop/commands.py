"""What `always` remembers of a command, and which other commands that covers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fulgur.agent.loop.read_only import Rule, only_reads, rule
from fulgur.agent.loop.shell_words import simple_commands
from fulgur.config.settings import Settings

_INSIDE = r"(?!/)(?!(.*/)?\.\.(/|$)).*"  # a path below the folder that the command runs in
_PYTEST = rule("-q -v -x -s -k: -m: --lf --ff --co --tb= --maxfail= --no-header --collect-only", operand=_INSIDE)
_CARGO = rule("-q -v -p: --release --workspace --all --all-features --lib --bins --tests --package:", operand=r"[\w:]+")
_GO = rule("-v -race -short -run: -count:", operand=_INSIDE)

# Commands that may be remembered by their beginning. The listed options ensure that allowing one command does not cover
# another that runs, reads or writes something else (`git commit --template=`, `pytest -p`, `go test -exec`).
BEGINNINGS: Mapping[tuple[str, ...], Rule] = {
    ("cargo", "build"): _CARGO,
    ("cargo", "check"): _CARGO,
    ("cargo", "clippy"): _CARGO,
    ("cargo", "test"): _CARGO,
    ("git", "add"): rule("-A -u -v -n --all --update"),
    ("git", "commit"): rule("-a -m: -q -v -s --amend --no-edit --message: --all"),
    ("git", "diff"): rule("-w -U: --cached --staged --stat --name-only --name-status --no-color"),
    ("git", "show"): rule("-s --stat --name-only --name-status --no-color --oneline"),
    ("git", "status"): rule("-s -b --short --branch --porcelain="),
    ("go", "build"): rule("-v -race", operand=_INSIDE),
    ("go", "test"): _GO,
    ("go", "vet"): rule("-v", operand=_INSIDE),
    ("mkdir",): rule("-p -v", operand=_INSIDE),
    ("mypy",): rule("--strict --no-color-output", operand=_INSIDE),
    ("pytest",): _PYTEST,
    ("python", "-m", "pytest"): _PYTEST,
    ("python3", "-m", "pytest"): _PYTEST,
    ("ruff", "check"): rule("-q --fix --diff", operand=_INSIDE),
    ("ruff", "format"): rule("-q --check --diff", operand=_INSIDE),
    ("touch",): rule("-c", operand=_INSIDE),
}


@dataclass(frozen=True)
class Allowed:
    """What a person has allowed permanently: all commands with a beginning of the table, or one exact command.

    Permission inside the sandbox does not carry over to the outside, nor the other way round. An exact command counts
    only in the folder it was allowed in. Outside the sandbox only exact commands are remembered.
    """

    outside: bool
    beginning: tuple[str, ...] = ()
    command: str = ""
    folder: str = ""

    def encode(self) -> tuple[str, ...]:
        """Encode it for storage; `decode` reads it back."""
        where = "outside" if self.outside else "inside"
        return (where, "begins", *self.beginning) if self.beginning else (where, "exactly", self.folder, self.command)

    @classmethod
    def decode(cls, stored: tuple[str, ...]) -> Allowed | None:
        """Read it back; None for anything else, such as the wide prefixes of earlier versions."""
        match stored:
            case ("inside", "begins", *words) if tuple(words) in BEGINNINGS:
                return cls(False, beginning=tuple(words))
            case ("inside" | "outside" as where, "exactly", folder, command):
                return cls(where == "outside", command=command, folder=folder)
        return None

    def __str__(self) -> str:
        if self.beginning:
            return f"{' '.join(self.beginning)} …"
        return f"{self.command} (exactly this, in {self.folder}{', outside the sandbox' if self.outside else ''})"


def to_remember(command: str, folder: str, *, outside: bool) -> Allowed:
    """Return what `always` would remember for this command."""
    parts = simple_commands(command)
    if not outside and parts is not None and len(parts) == 1:
        words = parts[0].words
        for size in (3, 2, 1):
            beginning = words[:size]
            if beginning in BEGINNINGS and BEGINNINGS[beginning].fits(words[size:]):
                return Allowed(False, beginning=beginning)
    return Allowed(outside, command=command, folder=folder)


def covered(command: str, memory: Iterable[Allowed], folder: str, *, outside: bool) -> bool:
    """Whether a person has allowed this permanently: as a whole or, inside the sandbox, each of its parts."""
    known = [allowed for allowed in memory if allowed.outside == outside and allowed.folder in ("", folder)]
    if any(allowed.command == command for allowed in known if not allowed.beginning):
        return True
    parts = simple_commands(command)
    if outside or parts is None:
        return False
    exact = [simple_commands(allowed.command) for allowed in known if not allowed.beginning]
    whole = {only[0].words for only in exact if only is not None and len(only) == 1}
    beginnings = [allowed.beginning for allowed in known if allowed.beginning]

    def allows(words: tuple[str, ...], piped: bool) -> bool:
        if only_reads(words):
            return True
        if piped:  # a command's input decides what it does: `echo … | sh`
            return False
        return words in whole or any(
            words[: len(start)] == start and BEGINNINGS[start].fits(words[len(start) :]) for start in beginnings
        )

    return all(allows(part.words, part.piped) for part in parts)


def remembered(settings: Settings) -> tuple[str, ...]:
    """What `always` allowed in this project, as readable text; entries that no longer count are left out."""
    found = []
    for stored in settings.records.approved(settings.project):
        if (allowed := Allowed.decode(stored)) is not None:
            found.append(str(allowed))
        elif len(stored) == 2 and stored[0] in ("mcp", "edit"):
            found.append(" ".join(stored))
    return tuple(found)
