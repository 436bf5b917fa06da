"""The tensors behind `prefix_cache`: keys and values of all slots and prefixes.

Law: this file moves rows where the cache's decisions say and knows no token.

    slots_LSHCW     layers, slots, heads (keys first, then values), rows of the tail, head width
    prefix_LHPW     the same without slots, exactly as long as the prefix

Untouched pages of `slots_LSHCW` cost no memory: the operating system hands out zeroed ones on first write, and takes
them back when told. They must be zero, not just any memory: masked rows are read, and a NaN survives a mask.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor

from muster.engine.embedded.prefix_cache import Placement, Prefix, PrefixCache, Rebase
from muster.model.config import LlamaConfig


class KVStore:
    """Keys and values for `slots` sequences of up to `max_len` tokens, plus prefixes."""

    def __init__(self, config: LlamaConfig, slots: int, max_len: int, dtype: torch.dtype) -> None:
        shape = (config.layers, slots, 2 * config.kv_heads, max_len, config.head_width)
        size_bytes = math.prod(shape) * dtype.itemsize
        # torch.zeros would touch all pages, and numpy could not give them back
        self._pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        self.slots_LSHCW = torch.frombuffer(self._pages, dtype=torch.uint8).view(dtype).view(shape)
        self._prefixes: dict[int, Tensor] = {}

    def prefix(self, prefix: Prefix) -> Tensor:
        """(layers, 2 * kv heads, length, width)."""
        return self._prefixes[prefix.id]

    def place(self, placement: Placement) -> None:
        """Carry out what `PrefixCache.place` decided."""
        if placement.rebase is not None:
            self._rebase(placement.rebase)
        if (copy := placement.copy) is not None:
            rows = slice(copy.start - copy.source_shared, copy.stop - copy.source_shared)
            source = self.slots_LSHCW[:, copy.source, :, rows]
            self.slots_LSHCW[:, placement.slot.index, :, : copy.stop - copy.start] = source

    def forget(self, cache: PrefixCache) -> None:
        """Free the storage of prefixes that the cache dropped."""
        for prefix_id in cache.dropped:
            self._prefixes.pop(prefix_id, None)
        cache.dropped.clear()

    def give_back(self) -> None:
        """Return the memory of all slots to the operating system. None may be in use: they read as zeros now."""
        self._pages.madvise(mmap.MADV_DONTNEED)

    def _rebase(self, move: Rebase) -> None:
        own_LHCW = self.slots_LSHCW[:, move.slot.index]
        parts = [own_LHCW[:, :, : move.length - move.old_shared]]
        if move.old_prefix is not None:
            parts.insert(0, self._prefixes[move.old_prefix.id][:, :, : move.old_shared])
        self._prefixes[move.prefix.id] = torch.cat(parts, dim=2)
        first, last = move.length - move.old_shared, move.old_filled - move.old_shared
        if last > first:
            own_LHCW[:, :, : last - first] = own_LHCW[:, :, first:last].clone()
