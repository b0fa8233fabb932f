"""Making durable what was appended: by an fsync of the log's file, or of many logs by one sync of their file system.

Everything of a log is durable but the end of its tail: a sealed segment was synced when it was sealed, a new name
when it was made. So a sync is a matter of one file, and either way does the same for it:

G1  The durable end moves only to what had been appended when the sync began.
G2  A sync that failed fails each log that had something to sync in it (L3): also when it was one of the file system,
    whatever became of that log's own file.
G3  An error is told once for each open file. If a roll that seals the tail meanwhile got it, the sync beside it sees
    none: so one that ends on a failed log moves nothing and raises what failed the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress

from broker.api.errors import LiftlogError
from broker.storage.disk import File, FileSystem, storage_error
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
                    file.sync()
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


def sync_together(
    logs: Sequence[SyncedLog], file_system: FileSystem
) -> tuple[list[int | LiftlogError], OSError | None]:
    """`sync` of each log, by one sync of the file system where it holds their files.

    A log that somebody else is syncing, closing or recovering, or whose file is elsewhere, is synced by itself.

    Args:
        logs: None of them twice.
    Returns:
        For each log what `sync` returns, or raises; and the error of the file system, which is then not to be used
        any more (D5).
    """
    outcomes: dict[SyncedLog, int | LiftlogError] = {}
    begun: list[tuple[SyncedLog, int, File]] = []
    alone: list[SyncedLog] = []
    failed: OSError | None = None
    with ExitStack() as held:
        for log in logs:
            if not log._sync_lock.acquire(blocking=False):
                alone.append(log)
                continue
            held.callback(log._sync_lock.release)
            try:
                end, file = log._sync_begins()
                if log.durable_end >= end or file is None:
                    outcomes[log] = log.durable_end
                elif file_system.holds(file):
                    begun.append((log, end, file))
                else:
                    alone.append(log)
            except LiftlogError as error:
                outcomes[log] = error
            except OSError as error:
                outcomes[log] = storage_error(error, f"sync in {log.folder}")
        if begun:
            try:
                file_system.sync()
            except OSError as error:
                failed = error
        for log, end, file in begun:
            if failed is None:
                try:
                    log._sync_ends(end)
                    outcomes[log] = log.durable_end
                except LiftlogError as error:
                    outcomes[log] = error
            else:
                outcomes[log] = log._sync_failed(failed)
                with suppress(OSError):  # its own error is told to this file, not to the one that recovers it
                    file.sync()
    for log in alone:
        try:
            outcomes[log] = log.sync()
        except LiftlogError as error:
            outcomes[log] = error
    return [outcomes[log] for log in logs], failed
