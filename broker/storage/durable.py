"""Making durable what was appended, by an fsync of the log's file.

Everything of a log is durable but the end of its tail: a sealed segment was synced when it was sealed, a new name
when it was made. So a sync is a matter of one file:

G1  The durable end moves only to what had been appended when the sync began.
G2  A sync that failed fails the log (L3).
G3  An error is told once for each open file. Who is told notes it before anybody else may ask (`chain.C4`): a roll
    beside a sync that fails fails too, and a sync beside a roll that failed ends on a failed log, moves nothing and
    raises.
"""

from __future__ import annotations

from broker.api.errors import LiftlogError
from broker.storage.disk import File, storage_error
from broker.storage.tail import TailLog


class SyncedLog(TailLog):
    """See the module."""

    def sync(self) -> int:
        """Make durable all that was appended before the call. Appends go on meanwhile.

        Returns:
            The durable end, at least the log end of when the call began.
        Raises:
            StorageFailed, DiskFull: the log is failed (L3); what is not durable is once `recover` has succeeded.
        """
        wanted = self.log_end_offset
        with self._sync_lock:
            end, file = self._sync_begins()
            if self.durable_end < wanted and file is not None:
                try:
                    self._chain.sync(file)
                except OSError as error:
                    raise self._sync_failed(error) from error
                self._sync_ends(end)
            return self.durable_end

    def _sync_begins(self) -> tuple[int, File | None]:
        with self._lock:
            if self.failure is not None:
                self._check_writable()
            self._chain.close_retired()
            return self.log_end_offset, self._chain.file

    def _sync_ends(self, end: int) -> None:
        with self._lock:
            if self.failure is not None:
                self._check_writable()  # G3
            if end > self.durable_end:
                self.durable_end = end

    def _sync_failed(self, error: OSError) -> LiftlogError:
        with self._lock:
            return self._fail(storage_error(error, f"fsync in {self.folder}"))
