"""Snapshots of recurrent states, so that prefixes can be reused.

Keys and values can be cut at any token. A recurrent state cannot: it belongs to one position. So some nodes of the
prefix index own a snapshot of the state at their end, and a sequence resumes at the deepest of them. Snapshots are
taken where a later prompt is likely to diverge from this one:

    - the last block boundary of a prompt, some tokens before its end: an answer's opening may be written anew
    - the end of an answer
    - every few thousand tokens of a long prompt

When all are in use, the least recently used one is given up.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fulgur.engine.cache import Node

EVERY = 2048  # tokens of a prompt between two snapshots
BEFORE = 16  # the boundary that is captured is at least this many tokens before the end of a prompt


class StateStore(Protocol):
    """The states of a runtime: one per slot, which steps advance, and room for `snapshots` copies."""

    slots: int
    snapshots: int

    def save(self, slot: int, position: int, snapshot: int) -> None: ...

    def restore(self, snapshot: int, slot: int) -> None: ...

    def copy(self, source: int, target: int) -> None: ...


def capture_point(length: int, block: int) -> int:
    """Where the state of a prompt of `length` tokens is captured; 0: nowhere."""
    return max(length - BEFORE, 0) // block * block


class StatePool:
    """Which node owns which snapshot, in the order of their last use."""

    def __init__(self, store: StateStore) -> None:
        self.store = store
        self._free = list(range(store.snapshots))
        self._owners: OrderedDict[int, Node] = OrderedDict()

    def capture(self, node: Node, slot: int, position: int) -> None:
        """Keep the state of a running sequence at the end of `node`, `position` tokens from the start."""
        if node.state < 0:
            if not self._free:
                if not self._owners:
                    return  # the store has no room for snapshots
                self.drop(next(iter(self._owners.values())))
            node.state = self._free.pop()
            self.store.save(slot, position, node.state)
            self._owners[node.state] = node
        self._owners.move_to_end(node.state)

    def resume(self, node: Node, slot: int) -> None:
        """Restore the state at the end of `node`, for a sequence that continues from there."""
        self._owners.move_to_end(node.state)
        self.store.restore(node.state, slot)

    def drop(self, node: Node) -> None:
        """Free a node's snapshot, if it has one: the node is removed, or another one needs the room more."""
        if node.state >= 0:
            del self._owners[node.state]
            self._free.append(node.state)
            node.state = -1
