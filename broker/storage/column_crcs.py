"""The CRCs of the columns of stored batches, so that some columns can be read, checked and sent without the others.

    a batch is checked as a whole   ──► verify ──► CRCS_OF_COLUMNS: the CRC of each column, by header
    its header is read again        ──► of     ──► known: of the rest only what is wanted is read

A batch is known by its header, which has its CRC: so a batch that compaction has copied stays known, and one that was
cut off and written anew is another one. What is remembered was computed of bytes whose CRC was right. Whoever reads a
column later finds by it what has changed on the disk since; a client finds it by the CRC of the stored batch itself
(`columns.J1`).

In memory alone, those that were asked for last: after a start the first read of some columns reads all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from crc32c import crc32c

from broker.api.batch import BatchHeader, crc_of
from broker.api.checked import verified_known
from broker.api.columns import head_bytes

REMEMBERED_BYTES_MIN: Final = 16 << 10
"""Smaller batches are as soon read whole."""
REMEMBERED_BATCHES_MAX: Final = 1 << 17
"""For the process: some 40 MiB."""

Known = bytes
"""Of the columns of a batch: the CRC of each, what each adds to that of the batch, and where they lie; packed as
`columns.KNOWN`."""


class ColumnCrcs:
    """CRCs of columns, of the batches that were asked for last. Thread-safe.

    Args:
        batches_max: So many.
    """

    def __init__(self, batches_max: int) -> None:
        self.batches_max = batches_max
        self._known: OrderedDict[tuple[int, int], Known] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, head: bytes | bytearray | memoryview) -> Known | None:
        """The columns of a batch; None: it is not known, or this header is damaged.

        Args:
            head: The header, and nothing else.
        """
        try:
            key = _key_of(head)
        except ValueError:
            return None
        with self._lock:
            found = self._known.get(key)
            if found is None:
                return None
            self._known.move_to_end(key)
            return found

    def verify(self, message: bytes | bytearray | memoryview, *, where: str = "") -> tuple[BatchHeader, Known | None]:
        """Check a whole batch. Returns its header and what is known of its columns, which is remembered if it is large
        enough; None: as `columns.spans_of`.

        Raises:
            As `batch.verify_batch`.
        """
        header, known = verified_known(message, where=where)
        if known is not None and len(message) >= REMEMBERED_BYTES_MIN:
            key = _key_of(message[: head_bytes(message)])
            with self._lock:
                self._known[key] = known
                while len(self._known) > self.batches_max:
                    self._known.popitem(last=False)
        return header, known


def _key_of(head: bytes | bytearray | memoryview) -> tuple[int, int]:
    return crc32c(head), crc_of(head)


CRCS_OF_COLUMNS: Final = ColumnCrcs(REMEMBERED_BATCHES_MAX)
"""Shared by all logs of the process."""
