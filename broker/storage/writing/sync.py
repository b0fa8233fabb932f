"""Fsync what was appended, while appends go on.

Everything of a log is durable but the end of its tail: a sealed segment was synced when it was
sealed, a new name when it was made. So a sync is a matter of one file. It does not hold the append
lock during the fsync: one fsync serves all that was written before it (group commit).

G1  The durable end moves only to what had been appended when the sync began.
G2  A sync that failed fails the log (`state.L3`).
G3  The kernel tells an error once for each open file. The one who is told notes it before anybody else
    may ask (`chain.C4`): a roll beside a sync that fails fails too, and a sync beside a roll that failed
    ends on a failed log, moves nothing and raises.
"""

from __future__ import annotations

from broker.storage.disk import File, storage_error
from broker.storage.writing.state import LogState


class Syncer:
    """See the module."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def sync(self) -> int:
        """Make durable all that was appended before the call. Appends go on meanwhile.

        Returns:
            The durable end, at least the log end of when the call began.
        Raises:
            StorageFailed, DiskFull: the log is failed (G2); what is not durable is once `recover` has succeeded.
        """
        wanted = self._state.log_end_offset
        with self._state.sync_lock:
            end, file = self._sync_begins()
            if self._state.durable_end < wanted and file is not None:
                try:
                    self._state.chain.sync(file)
                except OSError as error:
                    with self._state.lock:
                        raise self._state.fail(storage_error(error, f"fsync in {self._state.folder}")) from error
                self._sync_ends(end)
            return self._state.durable_end

    def _sync_begins(self) -> tuple[int, File | None]:
        with self._state.lock:
            if self._state.failure is not None:
                self._state.check_writable()
            self._state.chain.close_retired()
            return self._state.log_end_offset, self._state.chain.file

    def _sync_ends(self, end: int) -> None:
        with self._state.lock:
            if self._state.failure is not None:
                self._state.check_writable()  # G3
            if end > self._state.durable_end:
                self._state.durable_end = end

    def sync_now(self) -> None:
        """Make all durable under the sync lock and the append lock. OSError: the log is failed (`state.L3`)."""
        if self._state.durable_end < self._state.log_end_offset and self._state.chain.file is not None:
            try:
                self._state.chain.sync(self._state.chain.file)
            except OSError as error:
                self._state.fail(storage_error(error, f"fsync in {self._state.folder}"))
                raise
            self._state.durable_end = self._state.log_end_offset
