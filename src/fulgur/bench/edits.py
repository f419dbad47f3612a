"""Edits as people make them, for the replay: an original, an instruction, and the edited text.

Each edit is a list of replacements, so that the change can be read at a glance; a replacement that does not find its
text is an error.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    instruction: str
    original: str
    replacements: tuple[tuple[str, str], ...]

    @property
    def edited(self) -> str:
        text = self.original
        for old, new in self.replacements:
            if old not in text:
                raise ValueError(f"{self.instruction!r}: {old!r} is not in the text")
            text = text.replace(old, new)
        return text


_CART = '''\
class Cart:
    """Items a customer is about to buy."""

    def __init__(self, customer, currency="EUR"):
        self.customer = customer
        self.currency = currency
        self.items = []

    def add(self, item, count=1):
        for line in self.items:
            if line["item"] == item:
                line["count"] += count
                return line
        line = {"item": item, "count": count}
        self.items.append(line)
        return line

    def remove(self, item):
        self.items = [line for line in self.items if line["item"] != item]

    def total(self, prices):
        total = 0
        for line in self.items:
            price = prices[line["item"]]
            print("price of", line["item"], price)
            total += price * line["count"]
        print("total", total)
        return total

    def receipt(self, prices):
        lines = []
        for line in self.items:
            price = prices[line["item"]]
            lines.append(f"{line['item']:<20} {line['count']:>3} x {price:>8.2f}")
        lines.append(f"{'total':<20} {self.total(prices):>14.2f} {self.currency}")
        return "\\n".join(lines)
'''

_FETCH = """\
import json
import time
import urllib.request


def fetch(url, timeout):
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        body = response.read()
    return json.loads(body)


def fetch_all(urls, timeout):
    results = {}
    for url in urls:
        results[url] = fetch(url, timeout)
    return results


def poll(url, timeout, interval, condition):
    while True:
        value = fetch(url, timeout)
        if condition(value):
            return value
        time.sleep(interval)


def summarise(results):
    rows = []
    for url, value in sorted(results.items()):
        size = len(json.dumps(value))
        kind = type(value).__name__
        rows.append((url, kind, size))
    widths = [max(len(str(row[i])) for row in rows) for i in range(3)]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)))
"""

_GRID = """\
from collections import deque

WALL = "#"
STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))


def parse(text):
    return [list(line) for line in text.splitlines() if line]


def neighbours(grid, row, column):
    for down, right in STEPS:
        r, c = row + down, column + right
        if 0 <= r < len(grid) and 0 <= c < len(grid[r]) and grid[r][c] != WALL:
            yield r, c


def distances(grid, start):
    seen = {start: 0}
    queue = deque([start])
    while queue:
        place = queue.popleft()
        for other in neighbours(grid, *place):
            if other not in seen:
                seen[other] = seen[place] + 1
                queue.append(other)
    return seen


def shortest(grid, start, goal):
    return distances(grid, start).get(goal)


def furthest(grid, start):
    seen = distances(grid, start)
    place = max(seen, key=seen.get)
    return place, seen[place]
"""

EDITS: tuple[Edit, ...] = (
    Edit(
        "Rename items to lines and drop the debug prints.",
        _CART,
        (
            ("self.items", "self.lines"),
            ('            print("price of", line["item"], price)\n', ""),
            ('        print("total", total)\n', ""),
        ),
    ),
    Edit(
        "Let add refuse a count below one, and let total take a discount.",
        _CART,
        (
            (
                "    def add(self, item, count=1):\n",
                "    def add(self, item, count=1):\n        if count < 1:\n"
                '            raise ValueError(f"count of {item} is {count}, it must be at least 1")\n',
            ),
            (
                "    def total(self, prices):\n        total = 0\n",
                "    def total(self, prices, discount=0.0):\n        total = 0\n",
            ),
            ("        return total\n", "        return total * (1 - discount)\n"),
        ),
    ),
    Edit(
        "Retry a failed fetch three times with growing pauses.",
        _FETCH,
        (
            ("def fetch(url, timeout):\n", "def fetch(url, timeout, attempts=3):\n"),
            (
                "    with urllib.request.urlopen(request, timeout=timeout) as response:\n"
                "        body = response.read()\n    return json.loads(body)\n",
                "    for attempt in range(attempts):\n        try:\n"
                "            with urllib.request.urlopen(request, timeout=timeout) as response:\n"
                "                return json.loads(response.read())\n"
                "        except OSError:\n            if attempt + 1 == attempts:\n                raise\n"
                "            time.sleep(2**attempt)\n",
            ),
        ),
    ),
    Edit(
        "Add type hints.",
        _GRID,
        (
            ("def parse(text):", "def parse(text: str) -> list[list[str]]:"),
            (
                "def neighbours(grid, row, column):",
                "def neighbours(grid: Grid, row: int, column: int) -> Iterator[Place]:",
            ),
            ("def distances(grid, start):", "def distances(grid: Grid, start: Place) -> dict[Place, int]:"),
            ("def shortest(grid, start, goal):", "def shortest(grid: Grid, start: Place, goal: Place) -> int | None:"),
            ("def furthest(grid, start):", "def furthest(grid: Grid, start: Place) -> tuple[Place, int]:"),
            (
                "from collections import deque\n",
                "from collections import deque\nfrom collections.abc import Iterator\n",
            ),
            ('WALL = "#"\n', 'Grid = list[list[str]]\nPlace = tuple[int, int]\n\nWALL = "#"\n'),
        ),
    ),
    Edit(
        "Return the path itself from shortest, not only its length.",
        _GRID,
        (
            ("    seen = {start: 0}\n", "    seen = {start: 0}\n    came = {}\n"),
            (
                "                queue.append(other)\n    return seen\n",
                "                came[other] = place\n                queue.append(other)\n    return seen, came\n",
            ),
            (
                "    return distances(grid, start).get(goal)\n",
                "    seen, came = distances(grid, start)\n    if goal not in seen:\n        return None\n"
                "    path = [goal]\n    while path[-1] != start:\n        path.append(came[path[-1]])\n"
                "    return path[::-1]\n",
            ),
            ("    seen = distances(grid, start)\n    place", "    seen, _ = distances(grid, start)\n    place"),
        ),
    ),
)
