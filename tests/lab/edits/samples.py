"""Hand-written sources in which every operation finds something to do."""

INVENTORY = '''\
"""Stock keeping."""

import csv
import json
import logging
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

logger = logging.getLogger(__name__)

DEFAULT_LIMIT = 50
CURRENCIES = ["EUR", "USD", "GBP", "CHF"]
LABELS = {"low": "running low", "out": "sold out", "fine": "in stock"}


class Level(Enum):
    LOW = 1
    FULL = 2
    EMPTY = 3


@dataclass
class Item:
    """One thing on a shelf."""

    name: str
    price: float
    amount: int = 0
    tag: str | None = None

    @property
    def worth(self) -> float:
        """What all of these are worth together."""
        return self.price * self.amount


class Store:
    def __init__(self, path: Path, limit: int = 10) -> None:
        super().__init__()
        self.path = path
        self.limit = limit
        self.items = []
        self.index = {}

    def add(self, item: Item, amount: int = 1, note: str | None = None) -> bool:
        """Put an item on the shelf."""
        if item is None:
            return False
        if item.name not in self.index and item.price is not None:
            self.index[item.name] = item
        if isinstance(item, Item):
            item.amount += amount
        logger.info("stored")
        return True

    def count(self, names: list[str]) -> int:
        total = 0
        for position, name in enumerate(names):
            # every name once
            total += self.index[name].amount
            logger.debug(f"counted {name} at {position}")
        return total

    def cheap(self, limit: float) -> list[Item]:
        found = [item for item in self.items if item.price < limit]
        logger.info("cheap ones")
        return found

    def prices(self) -> dict[str, float]:
        return {item.name: item.price for item in self.items}

    def walk(self):
        yield from self.items

    def has_any(self, level: int) -> bool:
        return any(item.amount > level for item in self.items)

    def describe(self, item: Item) -> str:
        if item.amount == 0:
            return "none"
        kind = "many" if item.amount > 10 else "few"
        text = f"{item.name}: {kind}"
        return text


def load(path: Path, encoding: str = "utf-8") -> list[Item]:
    """Read items from a file."""
    with open(path, encoding=encoding) as handle:
        rows = list(csv.reader(handle))
    result = []
    for row in rows:
        if len(row) == 0:
            continue
        result.append(Item(row[0], float(row[1])))
    return result


def save(store: Store, path: Path) -> None:
    data = {"items": [item.name for item in store.items]}
    with open(path, "w") as out:
        out.write(json.dumps(data, indent=2))
    logger.info("saved")


def main() -> None:
    store = Store(Path("shop.json"), 20)
    for item in load(Path("items.csv"), "latin-1"):
        store.add(item, amount=3)
    save(store, Path("shop.json"))
    print("done")
    print(os.getcwd())
'''

SERVICE = '''\
"""Fetching things."""

import asyncio
import functools
import re
import time
from typing import Any, Optional

TIMEOUT = 30
RETRIES = 3
HOSTS = (
    "alpha",
    "beta",
    "gamma",
)


class FetchError(Exception):
    pass


def clamp(value, low=0, high=100):
    if low <= value <= high:
        return value
    if value < low:
        return low
    return high


@functools.lru_cache
def parse(text, strict=False):
    if text is None:
        raise ValueError("no text")
    match = re.match(r"(\\w+)=(\\d+)", text)
    if match and strict:
        return match.group(1)
    if strict in (True, False):
        return None
    else:
        return text.strip()


async def fetch(session: Any, url: str, timeout: float = 5.0) -> Optional[str]:
    """Get one page."""
    try:
        answer = await session.get(url, timeout=timeout, retries=3)
    except KeyError as error:
        raise FetchError("missing") from error
    return answer


async def fetch_all(session: Any, urls: list[str], limit: Optional[int] = None) -> list:
    pages = []
    for url in urls:
        page = await fetch(session, url)
        if page and len(pages) > 0:
            pages.append(page)
    await asyncio.sleep(0.1)
    return pages


def settings(options, name):
    value = options.get("timeout", 10)
    for key in options.keys():
        if key == name:
            return options[key]
    for key, entry in options.items():
        if entry > value:
            value = entry
    label = "long" if value > TIMEOUT else "short"
    return label


def wait(seconds, steps=4):
    delay = seconds / steps
    for _ in range(steps):
        time.sleep(delay)
    if steps > 2:
        status = "slow"
    else:
        status = "quick"
    return clamp(len(status), 1, 9)
'''

SAMPLES = {"shop/inventory.py": INVENTORY, "net/service.py": SERVICE}
