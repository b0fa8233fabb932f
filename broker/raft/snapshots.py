"""Snapshots of the state machine, in the place of pysyncobj's own serializer. No fork, no pickle, no second file.

A snapshot is written where the journal begins (`journal.py`), so the two cannot be apart. A follower that lacks
what the leader's log begins with is sent one in pieces:

    head (first index, length, CRC of the whole, where this piece begins)   piece

Pieces that are not the next one of the transfer that was begun are dropped. Only a whole snapshot is installed.

S1  A snapshot that ends at or below what this log has committed is not installed: it would take acknowledged
    entries away.
S2  One whose last entry is in this log is not installed either: what follows that entry stays.
S3  One that cannot be read is refused before anything is written: with it on the disk this voter would never start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from crc32c import crc32c
from pysyncobj.config import SERIALIZER_STATE

from broker.raft.journal import Entry, Journal, decode_transfer, encode_transfer

_PIECE: Final = struct.Struct("<QQIQ")
PIECE_BYTES: Final = 1 << 18
SNAPSHOT_BYTES_MAX: Final = 1 << 30
TRIES_LEFT_OUT: Final = 500
"""After a snapshot for which there was no room; it is tried in each tick."""
Chunk = tuple[bytes, bool, bool]


class BadSnapshot(Exception):
    """S3. Whoever sent it is not listened to any more."""


class Snapshots:
    """Methods that pysyncobj calls, under its own names.

    Args:
        take: The state as JSON values. put: Replaces it.
        check: Raises ValueError for a state and voters that cannot be put back (S3).
        voters_at: The voters as of an index of the log. others: The nodes of all that are now, without this one.

    Attributes:
        failure: Why the state could not be put back; pysyncobj does not tell.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        take: Callable[[], Any],
        put: Callable[[Any], None],
        check: Callable[[Any, tuple[Any, ...]], None] = lambda state, voters: None,
        voters_at: Callable[[int], tuple[str, ...]],
        others: Callable[[], list[Any]],
    ) -> None:
        self._journal = journal
        self._take = take
        self._put = put
        self._check = check
        self._voters_at = voters_at
        self._others = others
        self.failure: Exception | None = None
        self._pause = 0
        self._state = SERIALIZER_STATE.NOT_SERIALIZING
        self._index = 0
        self._sending: dict[Any, tuple[int, bytes, int]] = {}
        self._arriving: tuple[tuple[int, int, int], bytearray] | None = None

    # -- taking one -------------------------------------------------------------------------------------------

    def checkSerializing(self) -> tuple[int, int | None]:
        state, self._state = self._state, SERIALIZER_STATE.NOT_SERIALIZING
        return state, self._index

    def serialize(self, data: Any, id: int) -> None:
        """The state is that after the second of the entries from `id` on; `data` is not needed."""
        if self._pause:
            self._pause -= 1
            return
        entries = [entry for entry in self._journal.entries if entry[1] >= id]
        if self._journal.renew(self._take(), self._voters_at(id + 1), entries):
            self._journal.entries = entries
            self._state = SERIALIZER_STATE.SUCCESS
        else:
            self._state, self._pause = SERIALIZER_STATE.FAILED, TRIES_LEFT_OUT
        self._index = id

    def deserialize(self) -> tuple[None, Entry, Entry, list[Any]]:
        """Put the state back that the journal begins with."""
        base = self._journal.base
        try:
            self._put(base.snapshot)
        except Exception as error:
            self.failure = error
            raise
        prev, last = self._journal.entries[:2]
        return None, last, prev, self._others()

    # -- sending one ------------------------------------------------------------------------------------------

    def getTransmissionData(self, transmissionID: Any) -> Chunk | None:
        base = self._journal.base
        if base.snapshot is None:
            return None
        found = self._sending.get(transmissionID)
        if found is None:
            # Send what is on disk, not what is applied by now.
            prev, last = self._journal.entries[:2]
            found = (last[1], encode_transfer(base.snapshot, base.voters, prev, last), 0)
        index, data, at = found
        piece = data[at : at + PIECE_BYTES]
        is_last = at + len(piece) == len(data)
        self._sending[transmissionID] = (index, data, at + len(piece))
        if is_last:
            del self._sending[transmissionID]
        return _PIECE.pack(index, len(data), crc32c(data), at) + piece, at == 0, is_last

    def cancelTransmisstion(self, id: Any) -> None:
        self._sending.pop(id, None)

    # -- receiving one ----------------------------------------------------------------------------------------

    def setTransmissionData(self, data: Any) -> bool:
        """Take a piece; True: it was the last, and the snapshot is installed."""
        if not isinstance(data, (tuple, list)) or len(data) != 3 or not isinstance(data[0], bytes):
            return False
        if len(data[0]) < _PIECE.size:
            return False
        index, size, crc, at = _PIECE.unpack_from(data[0])
        piece = data[0][_PIECE.size :]
        transfer = (index, size, crc)
        if at == 0:
            self._arriving = (transfer, bytearray())
        if self._arriving is None or self._arriving[0] != transfer or len(self._arriving[1]) != at:
            return False
        self._arriving[1].extend(piece)
        if len(self._arriving[1]) < size or size > SNAPSHOT_BYTES_MAX:
            return False
        whole, self._arriving = bytes(self._arriving[1]), None
        return crc32c(whole) == crc and self._install(whole)

    def _install(self, data: bytes) -> bool:
        try:
            snapshot, voters, prev, last = decode_transfer(data)
        except ValueError as error:
            raise BadSnapshot(str(error)) from error
        own = self._journal.entry_at(last[1])
        is_known = own is not None and own[2] == last[2]
        if last[1] <= self._journal.commit_index or is_known or prev[1] + 1 != last[1]:  # S1, S2
            return False
        try:
            self._check(snapshot, voters)
        except ValueError as error:
            raise BadSnapshot(str(error)) from error
        if not self._journal.renew(snapshot, voters, [prev, last]):
            return False  # no room
        self._journal.entries = [prev, last]
        self._journal.commit_index = last[1]
        self._journal.is_installing = 2
        return True
