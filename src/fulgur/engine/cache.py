"""The KV cache: fixed-size blocks of tokens, shared between sequences that have a prefix in common.

The index is a tree of blocks: a node is one block, its key is the block's tokens, and its path is the whole prefix.
Full blocks are shared by reference count. A block that matches only in part (or is not full yet) is copied, since
its other slots belong to another text; so a prefix is reused to the exact token. A block that no sequence holds any
more stays in the index until it is needed: least recently used first, leaves before their parents.

Kernels read adjacent blocks as one stream. So a sequence gets the block after its last one where it can, and its first
one at the start of a run. Blocks are evicted several at a time, which often frees a whole run.

Each owner has a separate tree, so nobody learns from the length of a cached prefix what another owner has sent.

A live sequence puts each block into the index when it is full, and the last, partly filled one when it ends.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from itertools import count

from fulgur.engine.runtime import IntArray, Runtime
from fulgur.engine.states import EVERY, StatePool, capture_point

RUN = 8  # contiguous blocks in a run; each run starts at a multiple of it (`kernels/cpu/layout.h`)
_FEW = 32  # at most one block in this many is evicted at a time


class Node:
    """One block in the index. Its children are also kept sorted: the longest common prefix is next to a key's place."""

    __slots__ = ("block", "children", "key", "order", "parent", "refs", "stamp", "state")

    def __init__(self, parent: Node | None, key: tuple[int, ...], block: int, refs: int, stamp: int) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.refs = refs
        self.stamp = stamp
        self.state = -1  # the snapshot of the recurrent state at its end, if it has one
        self.children: dict[tuple[int, ...], Node] = {}
        self.order: list[tuple[int, ...]] = []


class BlockTable:
    """The blocks of one sequence: the first `len(nodes)` are in the index and shared, the others its own."""

    __slots__ = ("blocks", "captured", "nodes", "root", "row", "slot")

    def __init__(self, row: IntArray, root: Node, slot: int = 0) -> None:
        self.row = row
        self.slot = slot  # of its recurrent state
        self.captured = 0  # the position at which to take a snapshot of it
        self.root = root
        self.blocks: list[int] = []
        self.nodes: list[Node] = []


class Cache:
    """All blocks of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.size = runtime.block_tokens
        self.blocks = runtime.kv_blocks
        self.roots: dict[str, Node] = {}  # by owner
        self.free = set(range(self.blocks))
        self.unreferenced = 0  # nodes that no sequence holds
        self._clock = 0
        self._order = count()
        self._evictable: list[tuple[int, int, Node]] = []  # a heap; stale entries are skipped when popped
        self.states = None if runtime.states is None else StatePool(runtime.states)

    def root_of(self, owner: str) -> Node:
        root = self.roots.get(owner)
        if root is None:
            root = self.roots[owner] = Node(None, (), -1, 1, 0)
        return root

    def available(self) -> int:
        """Blocks that a sequence could get: free ones and those that may be evicted."""
        return len(self.free) + self.unreferenced

    def lookup(self, tokens: list[int], usable: int, root: Node) -> tuple[list[Node], Node | None, int]:
        """The longest cached prefix of tokens[:usable]: full blocks, a block to copy, and how much of it matches."""
        size, node, nodes, at = self.size, root, [], 0
        while at + size <= usable:
            child = node.children.get(tuple(tokens[at : at + size]))
            if child is None:
                break
            nodes.append(child)
            node = child
            at += size
        key = tuple(tokens[at : min(at + size, usable)])
        best, common = None, 0
        if key and node.order:
            place = bisect_left(node.order, key)
            for neighbour in node.order[max(place - 1, 0) : place + 1]:
                shared = _common_prefix(neighbour, key)
                if shared > common:
                    best, common = node.children[neighbour], shared
        return nodes, best, common

    def missing(self, tokens: list[int], total: int, owner: str = "") -> int:
        """How many available blocks a sequence of `total` tokens that begins with `tokens` would take."""
        nodes, _, _ = self.lookup(tokens, len(tokens) - 1, self.root_of(owner))
        held = sum(1 for node in nodes if node.refs > 0)
        return -(-total // self.size) - held

    def acquire(self, tokens: list[int], row: IntArray, owner: str = "", slot: int = 0) -> tuple[BlockTable, int]:
        """A table that starts with the longest cached prefix, and its length in tokens.

        The last token is never taken from the cache: it is computed again, so that its logits exist. With recurrent
        states the prefix ends at a snapshot, which is restored into `slot`.
        """
        root = self.root_of(owner)
        nodes, partial, common = self.lookup(tokens, len(tokens) - 1, root)
        table = BlockTable(row, root, slot)
        if self.states is not None:
            table.captured = capture_point(len(tokens), self.size)
            nodes, partial = self._resumable(nodes, tokens[len(nodes) * self.size : -1], root)
            common = len(partial.key) if partial is not None else 0
        for node in nodes:
            self._hold(node)
            row[len(table.blocks)] = node.block
            table.blocks.append(node.block)
        table.nodes = nodes
        length = len(nodes) * self.size
        if partial is not None:
            self._hold(partial)  # so that making room does not evict what is about to be copied
            if self._append_block(table):
                self.runtime.copy_block(partial.block, table.blocks[-1])
                length += common
            elif self.states is not None:  # fall back to the last full block with a state
                table.nodes, _ = self._resumable(nodes, [], root)
                for node in nodes[len(table.nodes) :]:
                    row[len(table.blocks) - 1] = -1
                    table.blocks.pop()
                    self._drop(node)
                length = len(table.nodes) * self.size
            self._clock += 1
            partial.stamp = self._clock
            if self.states is not None and length > len(table.nodes) * self.size:
                self.states.resume(partial, slot)
            self._drop(partial)
        if self.states is not None and length and length == len(table.nodes) * self.size:
            self.states.resume(table.nodes[-1], slot)
        return table, length

    def _resumable(self, nodes: list[Node], rest: list[int], root: Node) -> tuple[list[Node], Node | None]:
        """The longest part of a cached prefix that ends at a snapshot: full blocks, and perhaps a partly filled one.
        `rest` holds the tokens after the full blocks."""
        parent = nodes[-1] if nodes else root
        partial = [node for key, node in parent.children.items() if node.state >= 0 and tuple(rest[: len(key)]) == key]
        if partial:
            return nodes, max(partial, key=lambda node: len(node.key))
        while nodes and nodes[-1].state < 0:
            nodes = nodes[:-1]
        return nodes, None

    def grow(self, table: BlockTable, length: int) -> bool:
        """Make room for `length` tokens; False (keeping the blocks it got) when all the others are in use."""
        needed = -(-length // self.size)
        while len(table.blocks) < needed:
            if not self._append_block(table):
                return False
        return True

    def commit(self, table: BlockTable, tokens: list[int], computed: int) -> None:
        """Put the blocks that are now full into the index, for others to share."""
        size, nodes = self.size, table.nodes
        while (len(nodes) + 1) * size <= computed:
            at = len(nodes)
            parent = nodes[-1] if nodes else table.root
            key = tuple(tokens[at * size : (at + 1) * size])
            node = parent.children.get(key)
            if node is None:
                node = self._insert(parent, key, table.blocks[at], refs=1)
            else:  # another sequence computed the same block meanwhile: bit-identical, so keep one
                self._hold(node)
                self.free.add(table.blocks[at])
                table.blocks[at] = node.block
                table.row[at] = node.block
            nodes.append(node)
            end = (at + 1) * size
            if self.states is not None and end == computed and (end == table.captured or end % EVERY == 0):
                self.states.capture(node, table.slot, end)

    def release(self, table: BlockTable, tokens: list[int], computed: int) -> None:
        """Release a sequence's blocks; what it computed stays in the index until the room is needed."""
        self.commit(table, tokens, computed)
        full = len(table.nodes)
        self._clock += 1
        rest = table.blocks[full:]
        key = tuple(tokens[full * self.size : computed])
        if key and rest:
            parent = table.nodes[-1] if full else table.root
            place = bisect_left(parent.order, key)
            found = parent.order[place] if place < len(parent.order) else ()
            if found == key or (found[: len(key)] == key and self.states is None):
                node = parent.children[found]  # holds these tokens, perhaps more
                node.stamp = self._clock
            else:
                node = self._insert(parent, key, rest.pop(0), refs=0)
                self.unreferenced += 1
            if self.states is not None and node.key == key:
                self.states.capture(node, table.slot, computed)
            self._offer(node)
        elif self.states is not None and full and full * self.size == computed:
            self.states.capture(table.nodes[-1], table.slot, computed)
        self.free.update(rest)
        for node in reversed(table.nodes):
            node.stamp = self._clock
            self._drop(node)
        table.row[: len(table.blocks)] = -1
        table.blocks, table.nodes = [], []

    def fork(self, table: BlockTable, computed: int, row: IntArray, slot: int = 0) -> BlockTable | None:
        """A second table over the same prefix: full blocks shared, the last one copied. None when there is no room."""
        full = computed // self.size
        copy = BlockTable(row, table.root, slot)
        for node in table.nodes[:full]:
            self._hold(node)
            row[len(copy.blocks)] = node.block
            copy.blocks.append(node.block)
        copy.nodes = table.nodes[:full]
        if computed % self.size:
            if not self._append_block(copy):
                self.release(copy, [], 0)
                return None
            self.runtime.copy_block(table.blocks[full], copy.blocks[-1])
        if self.states is not None:
            self.states.store.copy(table.slot, slot)
        return copy

    def clear(self) -> None:
        """Forget every prefix that no sequence holds."""
        while self._evict():
            pass

    def _append_block(self, table: BlockTable) -> bool:
        free = self.free
        for _ in range(0 if free else min(max(self.blocks // _FEW, 1), RUN)):
            if not self._evict():
                break
        if not free:
            return False
        block = table.blocks[-1] + 1 if table.blocks else -1
        if block not in free:
            block = min(free, key=_place)
        free.remove(block)
        table.row[len(table.blocks)] = block
        table.blocks.append(block)
        return True

    def _insert(self, parent: Node, key: tuple[int, ...], block: int, refs: int) -> Node:
        place = bisect_left(parent.order, key)
        if place:  # a partly filled block that the new one extends is redundant
            before = parent.order[place - 1]
            if len(before) < len(key) and key[: len(before)] == before:
                old = parent.children[before]
                if old.refs == 0 and old.state < 0:
                    self._remove(old)
                    self.free.add(old.block)
                    place -= 1
        node = Node(parent, key, block, refs, self._clock)
        parent.children[key] = node
        parent.order.insert(place, key)
        return node

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        del parent.order[bisect_left(parent.order, node.key)]
        if self.states is not None:
            self.states.drop(node)
        node.parent = None
        self.unreferenced -= 1

    def _hold(self, node: Node) -> None:
        if node.refs == 0:
            self.unreferenced -= 1
        node.refs += 1

    def _drop(self, node: Node) -> None:
        node.refs -= 1
        if node.refs == 0:
            self.unreferenced += 1
            self._offer(node)

    def _offer(self, node: Node) -> None:
        """Make a node a candidate for eviction, if no sequence holds it and it has no children."""
        if node.refs == 0 and not node.children and node.parent is not None:
            heapq.heappush(self._evictable, (node.stamp, next(self._order), node))
            if len(self._evictable) > 4 * self.blocks + 64:
                self._evictable = [entry for entry in self._evictable if _current(entry)]
                heapq.heapify(self._evictable)

    def _evict(self) -> bool:
        """Free the least recently used block; False if all are held."""
        while self._evictable:
            entry = heapq.heappop(self._evictable)
            if _current(entry):
                node = entry[2]
                parent = node.parent
                assert parent is not None
                self._remove(node)
                self.free.add(node.block)
                self._offer(parent)
                return True
        return False


def _place(block: int) -> tuple[int, int]:
    """Sort key of a free block: starts of runs first, so that sequences that grow together do not interleave."""
    return block % RUN, block


def _current(entry: tuple[int, int, Node]) -> bool:
    stamp, _, node = entry
    return node.refs == 0 and not node.children and node.parent is not None and node.stamp == stamp


def _common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    length = min(len(a), len(b))
    for i in range(length):
        if a[i] != b[i]:
            return i
    return length
