"""What a bench returns: rows of name, value and unit, the machine they were measured on, a table and a file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fulgur import __version__


@dataclass(frozen=True)
class Row:
    """`bar`, if set, is the target: the value must be at least this, or with `at_most` no more."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    at_most: bool = False

    @property
    def passed(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar


@dataclass
class Report:
    """`notes` are shown under the table: what was left out and why, which settings a peer ran with."""

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=lambda: machine())

    def add(self, name: str, value: float, unit: str, *, bar: float | None = None, at_most: bool = False) -> None:
        self.rows.append(Row(name, float(value), unit, bar, at_most))

    def value(self, name: str) -> float:
        return next(row.value for row in self.rows if row.name == name)

    def to_json(self) -> dict[str, Any]:
        rows = [{"name": row.name, "value": round_value(row.value), "unit": row.unit} for row in self.rows]
        return {"machine": self.machine, "rows": rows}

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def print(self) -> None:
        """Print the table to standard output, coloured on a terminal."""
        from rich.console import Console
        from rich.table import Table

        table = Table(title=self.title, title_justify="left", header_style="bold", box=None, pad_edge=False)
        table.add_column("row", no_wrap=True)
        table.add_column("value", justify="right")
        table.add_column("unit")
        table.add_column("bar", justify="right")
        for row in self.rows:
            table.add_row(row.name, format_value(row.value), row.unit, _bar(row))
        console = Console(soft_wrap=True)
        console.print(table)
        console.print(", ".join(f"{key} {value}" for key, value in self.machine.items()), style="dim", highlight=False)
        for note in self.notes:
            console.print(f"note: {note}", style="dim", highlight=False, markup=False)


def _bar(row: Row) -> str:
    if row.bar is None:
        return ""
    sign = "≤" if row.at_most else "≥"
    colour = "green" if row.passed else "red"
    return f"[{colour}]{sign} {format_value(row.bar)}[/]"


def round_value(value: float) -> float:
    """Round to four significant digits, or to one decimal from 1,000 on."""
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value, 1)


def format_value(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """The hardware and the software that numbers depend on."""
    return {
        "cpu": _cpu_name(),
        "cores": cores(),
        "memory_gb": memory_gb(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "fulgur": __version__,
    }


def cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_gb() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return 0.0


class Begin(Protocol):
    def __call__(self, what: str, skipped: int = 0) -> None: ...


@contextmanager
def progress(title: str, total: int) -> Iterator[Begin]:
    """Show a progress bar on standard error. Call the result each time a piece begins, with what comes next and how
    many pieces were skipped before it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[title]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task("", total=total, title=title)
        begun = 0

        def begin(what: str, skipped: int = 0) -> None:
            nonlocal begun
            begun += skipped
            bar.update(task, completed=min(begun, total), description=what)
            begun += 1

        yield begin
