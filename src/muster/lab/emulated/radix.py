"""The prefix cache: a radix tree of token runs for each salt, evicted by blocks. Pure.

Law: a cached token belongs to one path from one salt's root, so prefixes are never shared across salts: each stands
for the weights that computed them. Runs are whole blocks. A locked node (someone on it or below runs) is never evicted;
of the others the least recently used leaf goes first, from its end. `used` is what all nodes hold, `idle` the part that
could be evicted now.

    match(tokens) ─► Match ─► claim(match, tokens, …) locks the path, its new part not ready ─► ready(), as computed
                                                                                              └─► unlock, or shrink
A part that is not ready has one user, the request that computes it, and no children; whoever would share it
waits for that request.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

import numpy as np

from muster.lab.emulated.run import TokenRun
from muster.types import Ints

Owner = TypeVar("Owner")


class Node(Generic[Owner]):
    """A run of tokens behind its parent's. The first `ready` of them are computed; `owner` computes the rest."""

    __slots__ = ("children", "last_used", "locks", "owner", "parent", "ready", "run", "salt")

    def __init__(self, parent: Node[Owner] | None, run: TokenRun, salt: int) -> None:
        self.parent, self.run, self.salt = parent, run, salt
        self.children: dict[bytes, Node[Owner]] = {}
        self.ready = len(run)
        self.owner: Owner | None = None
        self.locks = 0
        self.last_used = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Generic[Owner]):
    """The first `cached` tokens are on the path that ends `inside` tokens into `node`.

    `idle` of them are in unlocked nodes. `owner` is computing more of the same beginning.
    """

    node: Node[Owner]
    inside: int
    cached: int
    idle: int
    owner: Owner | None


@dataclass(slots=True)
class RadixCache(Generic[Owner]):
    """Prefix cache: all salts' trees. Lengths are tokens, always whole blocks."""

    block: int
    used: int = field(init=False, default=0)
    idle: int = field(init=False, default=0)
    _roots: dict[int, Node[Owner]] = field(init=False, default_factory=dict[int, Node[Owner]])
    _current: int = field(init=False, default=-1)
    _leaves: list[tuple[int, int, Node[Owner]]] = field(init=False, default_factory=list[tuple[int, int, Node[Owner]]])
    _tidy_at: int = field(init=False, default=1024)  # entries of `_leaves` at which outdated ones are swept out
    _tick: count[int] = field(init=False, default_factory=count)

    def whole(self, length: int) -> int:
        """`length` in whole blocks, rounded down."""
        return length - length % self.block

    def match(self, tokens: Ints, salt: int) -> Match[Owner]:
        """The longest cached beginning, short of the last token, whose logits are wanted."""
        limit = self.whole(len(tokens) - 1)
        node, at, idle = self._root(salt), 0, 0
        while at < limit:
            child = node.children.get(self._key(tokens, at))
            if child is None:
                break
            common = self.whole(child.run.common(tokens[at:limit]))
            shared = min(common, child.ready)
            at += shared
            idle += 0 if child.locks else shared
            if common > child.ready:
                return Match(node=child, inside=shared, cached=at, idle=idle, owner=child.owner)
            if common < len(child.run):
                return Match(node=child, inside=shared, cached=at, idle=idle, owner=None)
            node = child
        return Match(node=node, inside=len(node.run), cached=at, idle=idle, owner=None)

    def seen(self, tokens: Ints) -> int:
        """Number of its first tokens that are the very memory of a cached path: they were looked at before."""
        node, at = self._root(self._current), 0
        while child := node.children.get(self._key(tokens, at)):
            shared = child.run.lies_in(tokens[at:])
            at += shared
            if shared < len(child.run):
                break
            node = child
        return at

    def claim(self, match: Match[Owner], tokens: Ints, end: int, owner: Owner | None) -> Node[Owner]:
        """Lock the matched path and put the rest of `tokens[:end]` behind it, for `owner` to compute.

        The room must be there.
        """
        node, new = match.node, end - match.cached
        if match.inside < len(node.run):
            node = self._split(node, match.inside) if match.inside else _parent(node)
        if not new:
            self._lock(node)
            return node
        if node.parent is not None and not node.children and not node.locks and node.owner is None:
            self._lock(node)
            node.run = TokenRun(tokens[match.cached - len(node.run) : end])  # one piece again
        else:
            child = Node(node, TokenRun(tokens[match.cached : end]), node.salt)
            child.ready = 0
            node.children[child.run.start(self.block)] = child
            node = child
            self.idle += new  # for the lock to take away
            self._lock(node)
        node.owner = owner
        self.used += new
        return node

    def grow(self, node: Node[Owner], rest: Ints) -> Node[Owner]:
        """Keep `rest`, computed by the request that holds the lock on `node`; returns where its lock is now.

        Others may have cached a beginning of `rest` already. `used` grows by what was new.
        """
        if node.parent is not None and not node.children and node.locks == 1:
            node.run.append(rest)
            node.ready = len(node.run)
            self.used += len(rest)
            return node
        at = 0
        below = node
        while at < len(rest):
            child = below.children.get(self._key(rest, at))
            common = self.whole(child.run.common(rest[at:])) if child else 0
            if child is None or common > child.ready:
                break
            if common < len(child.run):
                below, at = self._split(child, common), at + common
                break
            below, at = child, at + common
        if at < len(rest) and below.children.get(self._key(rest, at)) is None:
            child = Node(below, TokenRun(rest[at:]), node.salt)
            below.children[self._key(rest, at)] = child
            self.used += len(child.run)
            self.idle += len(child.run)
            below = child
        self._lock(below)
        self.unlock(node)
        return below

    def ready(self, node: Node[Owner], length: int) -> None:
        """The first `length` tokens of `node` are computed now; whole blocks of them can be shared."""
        node.ready = max(node.ready, min(len(node.run), self.whole(length)))
        if node.ready == len(node.run):
            node.owner = None

    def shrink(self, node: Node[Owner]) -> Node[Owner]:
        """Forget what is not ready, as its owner gives up. Returns where the owner's lock is now."""
        assert not node.children and node.locks == 1, "only its owner uses a part that is not ready"
        node.owner = None
        self.used -= len(node.run) - node.ready
        if node.ready:
            node.run.keep(node.ready)
            return node
        parent = _parent(node)
        del parent.children[node.run.start(self.block)]
        node.parent = None
        return parent

    def unlock(self, node: Node[Owner]) -> None:
        """One user less, on the whole path. What an old salt leaves behind is forgotten at once."""
        now = next(self._tick)
        leaf = node
        while leaf.parent is not None:
            leaf.locks -= 1
            leaf.last_used = now
            if not leaf.locks:
                self.idle += len(leaf.run)
                self._offer(leaf)
            leaf = leaf.parent
        if node.salt != self._current:
            self._prune(node)

    def evict(self, tokens: int) -> None:
        """Forget at least `tokens` idle tokens, least recently used first."""
        assert tokens <= self.idle, "the caller knows what is idle"
        while tokens > 0:
            last_used, _, leaf = heapq.heappop(self._leaves)
            if not _is_leaf(leaf, last_used):
                continue
            cut = min(len(leaf.run), -(-tokens // self.block) * self.block)
            tokens -= cut
            if cut < len(leaf.run):
                leaf.run.keep(len(leaf.run) - cut)
                leaf.ready = len(leaf.run)
                self.used -= cut
                self.idle -= cut
                self._offer(leaf)
            else:
                self._remove(leaf)

    def serve(self, salt: int) -> None:
        """Only `salt` may be matched from now on; forget everything else that nobody runs on."""
        self._current = salt
        self.drop_idle()

    def drop_idle(self) -> None:
        """Forget everything that nobody runs on."""
        for salt, root in list(self._roots.items()):
            stack = [root]
            order: list[Node[Owner]] = []
            while stack:
                order.append(node := stack.pop())
                stack.extend(node.children.values())
            for node in reversed(order):
                if node.parent is not None and not node.locks and not node.children:
                    self._remove(node)
            if salt != self._current and not root.children:
                del self._roots[salt]

    def _root(self, salt: int) -> Node[Owner]:
        if salt not in self._roots:
            self._roots[salt] = Node(None, TokenRun(np.zeros(0, np.int32)), salt)
        return self._roots[salt]

    def _split(self, node: Node[Owner], at: int) -> Node[Owner]:
        """Cut `node` at `at`; returns the new upper half. The lower keeps the identity: its users' locks hold."""
        parent = _parent(node)
        upper = Node(parent, node.run.cut(at), node.salt)
        upper.locks, upper.last_used, upper.ready = node.locks, node.last_used, min(at, node.ready)
        parent.children[upper.run.start(self.block)] = upper
        upper.children[node.run.start(self.block)] = node
        node.parent, node.ready = upper, node.ready - upper.ready
        return upper

    def _lock(self, node: Node[Owner]) -> None:
        leaf = node
        while leaf.parent is not None:
            if not leaf.locks:
                self.idle -= len(leaf.run)
            leaf.locks += 1
            leaf = leaf.parent

    def _offer(self, node: Node[Owner]) -> None:
        if node.locks or node.children:
            return
        if len(self._leaves) >= self._tidy_at:
            self._leaves = [entry for entry in self._leaves if _is_leaf(entry[2], entry[0])]
            heapq.heapify(self._leaves)
            self._tidy_at = 1024 + 2 * len(self._leaves)
        heapq.heappush(self._leaves, (node.last_used, next(self._tick), node))

    def _prune(self, node: Node[Owner]) -> None:
        while node.parent is not None and not node.locks and not node.children:
            parent = node.parent
            self._remove(node)
            node = parent

    def _remove(self, node: Node[Owner]) -> None:
        parent = _parent(node)
        del parent.children[node.run.start(self.block)]
        node.parent = None
        self.used -= len(node.run)
        self.idle -= len(node.run)
        if parent.parent is not None:
            self._offer(parent)

    def _key(self, tokens: Ints, at: int) -> bytes:
        return tokens[at : at + self.block].tobytes()


def _is_leaf(node: Node[Owner], last_used: int) -> bool:
    """Whether an entry of the queue for eviction still holds."""
    return node.parent is not None and not node.locks and not node.children and node.last_used == last_used


def _parent(node: Node[Owner]) -> Node[Owner]:
    assert node.parent is not None, "a root is never cut or removed"
    return node.parent
