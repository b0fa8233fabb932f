"""What lives as long as the process is not searched for cycles again and again.

Python's search for cycles holds every thread while it goes through all objects that it knows. A replica is some
hundreds of them. With 10,000 replicas a search took longer than the sessions of a broker, wherever an answer that
lists partitions had set it off: sessions lapsed, and leaders moved, without a fault anywhere.

Replicas are no cycles; they go when nobody refers to them, frozen or not. So what there is, is taken out of the search
when there are many more of them than before. A cycle that is rubbish at that moment stays for good: it is little, and
it happens once for each `STEP` replicas.
"""

from __future__ import annotations

import gc
from typing import Final

STEP: Final = 256
"""So many more replicas than before are some ten thousand objects."""


class Lasting:
    """Takes what lasts out of the search for cycles. For one thread."""

    def __init__(self) -> None:
        self._known = 0

    def note(self, replica_count: int) -> None:
        """So many replicas are open now."""
        if replica_count >= self._known + STEP:
            gc.freeze()
            self._known = replica_count
        self._known = min(self._known, replica_count)
