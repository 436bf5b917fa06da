"""Running batch of an emulated engine: its requests, and the memory they hold. Pure.

Law: a block is counted once: in the prefix cache, or as some request's own. A request's own blocks are what its
sequence and its next token need beyond the path that it has locked in the cache. Together they never exceed the
capacity; what is idle in the cache goes first.

    place ─► prefilling ─feed─► join ─► decoding ─advance─► vacate ─► its whole blocks stay in the cache, idle
"""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.engine.config import EmulatedEngineConfig
from muster.lab.emulated.decoding import Decoding
from muster.lab.emulated.radix import Match, RadixCache
from muster.lab.emulated.request import EmulatedRequest
from muster.types import Ints

Request = EmulatedRequest
Chunk = tuple[Request, int]
"""A request, and how many tokens of its prompt the step computes."""


@dataclass(slots=True)
class RunningBatch:
    """Running batch. `running` is in order of admission; `prefilling` are those whose prompt is not computed yet."""

    config: EmulatedEngineConfig
    cache: RadixCache[Request] = field(init=False)
    decoding: Decoding = field(init=False)
    running: dict[Request, None] = field(init=False, default_factory=dict[Request, None])
    prefilling: dict[Request, None] = field(init=False, default_factory=dict[Request, None])
    own_blocks: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.cache = RadixCache(self.config.block_tokens)
        self.decoding = Decoding(self.config.block_tokens)

    @property
    def full(self) -> bool:
        return len(self.running) >= self.config.max_running

    @property
    def used_tokens(self) -> int:
        """Cached or reserved."""
        return self.cache.used + self.own_blocks * self.config.block_tokens

    def free_blocks(self) -> int:
        """Number of blocks that are unused, or may be evicted."""
        locked = (self.cache.used - self.cache.idle) // self.config.block_tokens
        return self.config.blocks - self.own_blocks - locked

    def computed_tokens(self) -> int:
        """Tokens of those that run which have keys and values; beginnings that they share count once."""
        total = self.cache.used - self.cache.idle
        for request in self.running:
            assert request.node is not None, "who runs has a place in the cache"
            if request.decoding:
                self.decoding.settle(request)
            computed = request.length - 1 if request.decoding else request.filled
            if computed > request.path or request.node.owner is request:
                total += computed - request.path  # its own, or what it has still to compute of its place
        return total

    def fits(self, tokens: Ints, match: Match[Request]) -> bool:
        """Whether a sequence fits beside those that run, and one more token for each of these."""
        needed = self._blocks(len(tokens) + 1) - match.cached // self.config.block_tokens
        reserved = match.idle // self.config.block_tokens + self.decoding.blocks_for(1)
        return needed <= self.free_blocks() - reserved

    def place(self, request: Request, tokens: Ints, match: Match[Request]) -> None:
        """Let it in. `tokens` is its sequence, which must fit; the first `match.cached` need no computing."""
        end = self.cache.whole(len(tokens) - 1)
        request.node = self.cache.claim(match, tokens, end, request)
        request.path, request.filled = end, match.cached
        self.running[request] = None
        self.prefilling[request] = None
        self._own(self._blocks(len(tokens) + 1) - end // self.config.block_tokens)

    def room(self) -> int:
        """Tokens of prompts that the next step can compute beyond those already let in; below 1: none."""
        pending = sum(request.length - request.filled for request in self.prefilling)
        return self.config.max_step_tokens - self.decoding.rows - pending

    def chunks(self) -> list[Chunk]:
        """Chunks of prompts that the next step computes: in order of admission while it has room."""
        room = self.config.max_step_tokens - self.decoding.rows
        chunks: list[Chunk] = []
        for request in self.prefilling:
            size = min(request.length - request.filled, room)
            if not size:
                break
            chunks.append((request, size))
            room -= size
        return chunks

    def feed(self, request: Request, size: int) -> bool:
        """`size` more tokens of its prompt are computed; True: all are."""
        request.filled += size
        node = request.node
        assert node is not None, "only what was placed is fed"
        if node.owner is request:
            self.cache.ready(node, request.filled - (request.path - len(node.run)))
        return request.filled == request.length

    def join(self, request: Request) -> None:
        """Move a request to decoding: its prompt is computed and its next token sampled."""
        del self.prefilling[request]
        self.decoding.join(request)

    def advance(self, steps: int) -> list[Request]:
        """Decode; returns who has its whole reply now."""
        grown = self.decoding.blocks_for(steps)
        ended = self.decoding.advance(steps)
        self._own(grown)
        return ended

    def vacate(self, request: Request, *, keep: bool) -> int:
        """Take it out, and `keep` what it computed for later prompts. Returns how much it had computed."""
        node = request.node
        assert node is not None, "only what is in the batch can leave it"
        if request.decoding:
            self.decoding.leave(request)
            computed, blocks = request.length - 1, self._blocks(request.length)
        else:
            del self.prefilling[request]
            computed, blocks = request.filled, self._blocks(request.length + 1)
        self.own_blocks -= blocks - request.path // self.config.block_tokens
        end = self.cache.whole(computed)
        if node.owner is request:
            node = self.cache.shrink(node)
        elif keep and end > request.path:
            node = self.cache.grow(node, request.part(request.path, end))
        self.cache.unlock(node)
        request.node = None
        del self.running[request]
        return computed

    def _own(self, blocks: int) -> None:
        """Take blocks; whatever is too much then is evicted."""
        self.own_blocks += blocks
        excess = self.own_blocks + self.cache.used // self.config.block_tokens - self.config.blocks
        if excess > 0:
            self.cache.evict(excess * self.config.block_tokens)

    def _blocks(self, length: int) -> int:
        return -(-length // self.config.block_tokens)
