"""Memory that is used again: blocks that Arrow borrows, and that come back when its last view of them is dropped.

    take ──> block ──> filled ──> lent with a batch (_loan.pxi) ──> its slices, arrays and buffers
      ^                                                                 │ the last of them is dropped
      └──────────────────────── kept ◄──────────────── give ────────────┘

Memory that is new has to be cleared by the kernel page by page, and is in no processor cache.

M1  A block is not taken again before it was given back: whoever lends it gives it back when nothing can read it.
M2  At most `KEPT_MAX` blocks of a size are kept; sizes are powers of two.

No locks: a block comes back wherever a garbage collection may run, also in a thread that is just taking one. The
operations of a deque are atomic.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

Block = npt.NDArray[np.uint8]

BLOCK_BYTES_MIN: Final = 1 << 12
KEPT_MAX: Final = 8


class ReusedMemory:
    """Blocks by size. Thread-safe and fork-safe (a child has a copy of its own)."""

    def __init__(self) -> None:
        self._kept: dict[int, deque[Block]] = {}

    def take(self, size: int) -> Block:
        """A block of at least `size` bytes, content unspecified."""
        size = max(BLOCK_BYTES_MIN, 1 << (size - 1).bit_length())
        try:
            return self._kept[size].pop()
        except (KeyError, IndexError):
            return np.empty(size, np.uint8)

    def give(self, block: Block) -> None:
        """Take back what `take` gave, if nothing uses it any more."""
        kept = self._kept.get(block.nbytes)
        if kept is None:
            kept = self._kept.setdefault(block.nbytes, deque(maxlen=KEPT_MAX))
        kept.append(block)
