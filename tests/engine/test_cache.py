"""The prefix cache against a naive model, over a memory that knows what every slot must hold."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from fulgur.engine.cache import RUN, BlockTable, Cache, Node

SIZE = 4


class Memory:
    """A runtime that only stores, to each slot, the whole text up to it."""

    vocab_size, max_rows, block_tokens, states = 100, 256, SIZE, None

    def __init__(self, blocks: int) -> None:
        self.kv_blocks = blocks
        self.max_context = blocks * SIZE
        self.slots: list[list[tuple[int, ...] | None]] = [[None] * SIZE for _ in range(blocks)]

    def write(self, table: BlockTable, tokens: list[int], start: int, end: int) -> None:
        for at in range(start, end):
            self.slots[table.row[at // SIZE]][at % SIZE] = tuple(tokens[: at + 1])

    def holds(self, table: BlockTable, tokens: list[int], length: int) -> bool:
        return all(self.slots[table.row[at // SIZE]][at % SIZE] == tuple(tokens[: at + 1]) for at in range(length))

    def copy_block(self, source: int, target: int) -> None:
        self.slots[target] = list(self.slots[source])


@dataclass
class Live:
    tokens: list[int]
    table: BlockTable
    computed: int


def longest(paths: list[tuple[int, ...]], tokens: list[int]) -> int:
    """The longest common prefix of all but the last token with any cached text, by trying them all."""
    usable = tuple(tokens[:-1])
    return max((n for path in paths for n in range(len(path) + 1) if usable[:n] == path[:n]), default=0)


def nodes_of(cache: Cache) -> list[tuple[tuple[int, ...], Node]]:
    found, stack = [], [((), cache.root_of(""))]
    while stack:
        path, node = stack.pop()
        assert node.order == sorted(node.children)
        for key, child in node.children.items():
            assert child.parent is node and child.key == key
            found.append((path + key, child))
            stack.append((path + key, child))
    return found


def check(cache: Cache, memory: Memory, live: list[Live]) -> None:
    """Everything that must hold at any time."""
    nodes = nodes_of(cache)
    own = [block for each in live for block in each.table.blocks[len(each.table.nodes) :]]
    used = [node.block for _, node in nodes] + own + list(cache.free)
    assert sorted(used) == list(range(cache.blocks)), "a block is lost or in two places"
    assert cache.unreferenced == sum(node.refs == 0 for _, node in nodes)
    for path, node in nodes:
        assert node.refs == sum(node in each.table.nodes for each in live)
        assert len(node.key) == SIZE or (not node.children and node.refs == 0)
        assert node.parent is not None
        assert node.parent is cache.root_of("") or node.parent.refs >= node.refs
        start = len(path) - len(node.key)
        held = memory.slots[node.block][: len(node.key)]
        assert held == [path[: start + i + 1] for i in range(len(node.key))], "the index names what is not there"
    for each in live:
        assert each.table.row[: len(each.table.blocks)].tolist() == each.table.blocks
        assert (each.table.row[len(each.table.blocks) :] == -1).all()
        assert memory.holds(each.table, each.tokens, each.computed)


def text(rng: random.Random, texts: list[list[int]]) -> list[int]:
    """A new text that often begins like an earlier one."""
    start = rng.choice(texts)[: rng.randrange(30)] if texts and rng.random() < 0.8 else []
    return start + [rng.randrange(3) for _ in range(rng.randrange(1, 14))]


@pytest.mark.parametrize("seed", range(40))
def test_random_use_keeps_the_invariants_and_finds_the_longest_prefix(seed: int) -> None:
    rng = random.Random(seed)
    memory = Memory(blocks=rng.choice([12, 24, 200]))
    cache = Cache(memory)
    rows = np.full((8, memory.kv_blocks), -1, np.int32)
    free_rows = list(range(8))
    live: list[Live] = []
    texts: list[list[int]] = []
    for _ in range(120):
        action = rng.random()
        if action < 0.35 and free_rows:
            tokens = text(rng, texts)
            expected = longest([path for path, _ in nodes_of(cache)], tokens)
            room = bool(cache.free)
            table, length = cache.acquire(tokens, rows[free_rows[-1]])
            if room:
                assert length == expected
            assert length <= len(tokens) - 1 and memory.holds(table, tokens, length)
            live.append(Live(tokens, table, length))
            free_rows.pop()
        elif action < 0.7 and live:
            each = rng.choice(live)
            if each.computed == len(each.tokens):
                each.tokens.append(rng.randrange(3))
            end = rng.randrange(each.computed, len(each.tokens)) + 1
            if end <= rows.shape[1] * SIZE and cache.grow(each.table, end):
                memory.write(each.table, each.tokens, each.computed, end)
                each.computed = end
                cache.commit(each.table, each.tokens, each.computed)
        elif action < 0.8 and live and free_rows:
            each = rng.choice(live)
            copy = cache.fork(each.table, each.computed, rows[free_rows[-1]])
            if copy is not None:
                free_rows.pop()
                live.append(Live([*each.tokens[: each.computed], rng.randrange(3)], copy, each.computed))
        elif live:
            each = live.pop(rng.randrange(len(live)))
            row = next(i for i in range(8) if np.shares_memory(rows[i], each.table.row))
            cache.release(each.table, each.tokens, each.computed)
            free_rows.append(row)
            texts.append(each.tokens)
        check(cache, memory, live)
    for each in live:
        cache.release(each.table, each.tokens, each.computed)
    check(cache, memory, [])
    assert cache.available() == cache.blocks
    cache.clear()
    assert len(cache.free) == cache.blocks and not cache.root_of("").children


def use(cache: Cache, memory: Memory, tokens: list[int]) -> int:
    """Run a text through the cache; how much of it was there."""
    table, length = cache.acquire(tokens, np.full(memory.kv_blocks, -1, np.int32))
    assert cache.grow(table, len(tokens))
    memory.write(table, tokens, length, len(tokens))
    cache.release(table, tokens, len(tokens))
    return length


def test_a_prefix_is_reused_to_the_token() -> None:
    memory = Memory(20)
    cache = Cache(memory)
    first = list(range(10))
    assert use(cache, memory, first) == 0
    assert use(cache, memory, first) == 9  # the last one is computed again
    assert use(cache, memory, [*range(6), 50, 51]) == 6
    assert use(cache, memory, [*range(10), 60]) == 10
    assert use(cache, memory, [90]) == 0


def test_a_continued_text_takes_no_second_copy_of_its_last_block() -> None:
    memory = Memory(20)
    cache = Cache(memory)
    use(cache, memory, list(range(6)))
    use(cache, memory, list(range(7)))
    use(cache, memory, list(range(5)))
    assert cache.unreferenced == 2


def test_the_least_recently_used_goes_first_and_leaves_before_parents() -> None:
    memory = Memory(6)
    cache = Cache(memory)
    a, b, c = [1] * 8, [2] * 8, [3] * 8
    use(cache, memory, a)
    use(cache, memory, b)
    use(cache, memory, a)
    use(cache, memory, c)
    assert len(cache.free) == 0
    use(cache, memory, [4] * 4)  # takes the end of b, the least recently used
    paths = {path for path, _ in nodes_of(cache)}
    assert paths == {(1,) * 4, (1,) * 8, (2,) * 4, (3,) * 4, (3,) * 8, (4,) * 4}
    use(cache, memory, [5] * 4)  # then its beginning
    assert (2,) * 4 not in {path for path, _ in nodes_of(cache)}


def test_a_sequence_gets_neighbouring_blocks() -> None:
    """Also two that grow at the same time, and also from blocks that were evicted."""
    memory = Memory(256)
    cache = Cache(memory)
    a, b = (cache.acquire([start], np.full(256, -1, np.int32))[0] for start in (1, 2))
    for length in range(1, RUN * SIZE + 1):
        assert cache.grow(a, length) and cache.grow(b, length)
    for table, start in ((a, 0), (b, RUN)):
        assert table.blocks == list(range(start, start + RUN))
        cache.release(table, [], 0)
    for first in range(8):
        use(cache, memory, [first] * 32 * SIZE)
    assert not cache.free
    table, _ = cache.acquire([50], np.full(256, -1, np.int32))
    for length in range(1, RUN * SIZE + 1):
        assert cache.grow(table, length)
    assert table.blocks == list(range(table.blocks[0], table.blocks[0] + RUN))


def test_what_is_held_is_never_evicted() -> None:
    memory = Memory(4)
    cache = Cache(memory)
    table, _ = cache.acquire([1] * 12, np.full(4, -1, np.int32))
    assert cache.grow(table, 12)
    memory.write(table, [1] * 12, 0, 12)
    cache.commit(table, [1] * 12, 12)
    other, _ = cache.acquire([2] * 8, np.full(4, -1, np.int32))
    assert not cache.grow(other, 8) and len(other.blocks) == 1
    assert memory.holds(table, [1] * 12, 12)
    cache.release(other, [2] * 8, 0)
    assert cache.available() == 1


def test_bookkeeping_does_not_grow_with_use() -> None:
    memory = Memory(8)
    cache = Cache(memory)
    for i in range(2000):
        use(cache, memory, [i % 7, i % 3, 1, 2, 3])
    assert len(cache._evictable) <= 4 * cache.blocks + 65


def test_owners_share_nothing() -> None:
    """What one owner computed is found again by that owner only, to the token."""
    memory = Memory(64)
    cache = Cache(memory)
    tokens = list(range(1, 30))
    for owner, expected in (("a", 0), ("b", 0), ("a", 28), ("b", 28), ("", 0)):
        table, length = cache.acquire(tokens, np.full(memory.kv_blocks, -1, np.int32), owner)
        assert length == expected
        assert cache.grow(table, len(tokens))
        cache.release(table, tokens, len(tokens))
    cache.clear()
    assert len(cache.free) == cache.blocks
