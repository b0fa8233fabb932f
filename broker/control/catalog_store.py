"""The catalog on this broker's disk: one file of lines, rewritten as one at start and when it has grown.

    execute:   judge ─► write the line ─► fsync ─► apply ─► result
                 │           │              │
                 refused     cut off        nothing that the file says is trusted: a new one in its place

K1  A command is on disk, fsynced, before it is applied and its result told. One that the catalog
    refuses is not written: a later release may have other limits, and would carry it out.
K2  A rewrite replaces the file atomically, so a crash leaves the old or the new one whole.
K3  A command that is answered with an error has no effect later, either. The rest of its line is cut
    off, durably, before the error is told. Where that fails too the error says so (`sent`):
    whether the next start finds the command is not known. Until the file is whole again every
    command is refused, and each tries to mend it; so does `mend`, as no other command may follow.
K4  After a failed fsync the file is not asked again. Linux tells the error once, marks the pages
    clean and may keep or drop them: a later fsync of the same file succeeds and says nothing of
    them. All that was answered is in memory, so it is written to a new file.
K5  On a disk without a free byte all commands are still taken but those that let something grow
    (`metadata/room.py`): the catalog with the command in it goes into the blocks of a spare file
    (`broker/storage/disk/spare_files.py`), whole.
K6  A command that an earlier release refuses comes in a new file, unless the snapshot of the one that is there stops
    that release already. It would go on without the command, as with any that was refused; its next file would lack it.
K7  A command that the disk holds up until its time is over (`in_time`) is taken back as one that fails (K3). Who asked
    for it was answered, and has gone on. The next start may find it only if the process ends while the disk holds.
K8  A fault of ours in the judgement of a command changes nothing. Later, nobody knows what the file, and the catalog in
    memory, have of it: nothing more is to be done by them in this process (`HalfDone`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from broker.api.errors import CorruptLog, DeadlineExceeded, InvalidRequest, LiftlogError
from broker.api.stream import SINCE
from broker.metadata.catalog import SINCE as COMMANDS_SINCE
from broker.metadata.catalog import Catalog
from broker.metadata.journal import decode_lines, encode_line
from broker.metadata.room import grows
from broker.storage.disk import NO_SPACE, Disk, File, storage_error

log = logging.getLogger(__name__)

FENCES_SINCE: Final = COMMANDS_SINCE["raise_fence"]
SPARE_BYTES_LEAST: Final = 64 << 10
GROWTH_BYTES: Final = 1 << 20
"""After so many bytes of commands, and as many as the snapshot has, the file is rewritten."""


def spare_bytes(path: str) -> int:
    """How large a spare file has to be for the catalog whose file this is, and for what may be added meanwhile (K5)."""
    try:
        found = os.stat(path).st_size
    except OSError:
        found = 0
    return max(SPARE_BYTES_LEAST, 2 * found)


class HalfDone(Exception):
    """K8."""


class CatalogStore:
    """Loads the catalog and keeps it. `execute` may wait for the disk: not for the control loop's own thread.

    Args:
        path: The file; need not exist.
        adopt: Brings what was read up to what this release keeps, before the file is written anew: the commands after
            it are judged by that, now and when they are read again.

    Attributes:
        on_applied: Called after each command, without the lock. It must not wait.

    Raises:
        CorruptLog: the file is damaged; nothing is changed then.
        StorageFailed, DiskFull: it cannot be read, or not be rewritten; it stays as it was.
    """

    def __init__(self, disk: Disk, path: str, adopt: Callable[[Catalog], None] = lambda catalog: None) -> None:
        self._disk = disk
        self._path = path
        self._lock = threading.Lock()
        self._file: File | None = None
        self._size = self._renew_at = 0
        self._is_whole = False  # the file holds what was answered and nothing else
        self._level = 0  # releases below this feature level are stopped by the snapshot of the file
        self.catalog = Catalog()
        self.on_applied: Callable[[], None] = lambda: None
        try:
            data = disk.read_file(path) if disk.exists(path) else None
        except OSError as error:
            raise storage_error(error, f"read {path}") from error
        if data is not None:
            lines, used = decode_lines(data, where=path)
            if used < len(data):
                log.warning("catalog.line_dropped path=%s bytes=%d", path, len(data) - used)
            for line in lines:
                self._replay(line)
        adopt(self.catalog)
        try:
            self._renew(frees=True)
        except OSError as error:
            raise storage_error(error, f"write {path}") from error

    def _replay(self, line: Mapping[str, Any]) -> None:
        if "snapshot" in line:
            try:
                self.catalog = Catalog.restore(line["snapshot"])
                self.catalog.snapshot()  # what can be no snapshot again is none
            except (LiftlogError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise CorruptLog(f"{self._path}: unreadable snapshot: {error}") from error
        else:
            self.catalog.apply(line)

    def execute(self, command: Mapping[str, Any], *, in_time: Callable[[], bool] = lambda: True) -> Any:
        """Judge, journal and apply one command; return its result.

        Args:
            in_time: Whether it may still be applied (K7). Asked once it is durable.
        Raises:
            StorageFailed, DiskFull: the journal could not be written; nothing was applied. With the field `sent` it is
                not known whether the next start will (K3).
            DeadlineExceeded: K7; likewise.
            LiftlogError: what the catalog answered.
            HalfDone: K8; as its cause another error that is none of these.
        """
        with self._lock:
            result = self.catalog.answered(command)
            if result is None:
                self.catalog.judge(command)
                line = _line_of(command)
                try:
                    result = self._carry_out(command, line, in_time)
                except LiftlogError:
                    raise
                except Exception as error:
                    raise HalfDone(f"a {command['kind']} is half done in {self._path}: {error!r}") from error
        self.on_applied()
        return result["ok"]

    def _carry_out(self, command: Mapping[str, Any], line: bytes, in_time: Callable[[], bool]) -> dict[str, Any]:
        file, size = self._file, self._size
        self._write(line, command)
        if not in_time():
            raise self._taken_back(file, size)
        result = self.catalog.apply(command)
        self._renew_if_long()
        return result

    def mend(self) -> None:
        """Make the file whole, if it is not and the disk takes it (K3)."""
        with self._lock:
            if self._is_whole:
                return
            with suppress(OSError):
                self._renew(frees=True)
                log.info("catalog.mended path=%s", self._path)

    def close(self) -> None:
        """Close the file; there is nothing to flush."""
        if self._file is not None:
            self._file.close()

    # --- the file -------------------------------------------------------------------------------------------

    def _write(self, line: bytes, command: Mapping[str, Any]) -> None:
        """Make a command durable, or leave the file as it was."""
        frees = not grows(command)
        if not self._is_whole:
            try:
                self._renew(frees=frees)
            except OSError as error:
                raise storage_error(error, f"mend {self._path}") from error
        if _level_of_command(command) > self._level:  # K6
            try:
                self._renew(command, frees=frees)
            except OSError as error:
                raise self._refusal(error) from error
            return
        try:
            self._write_once(line)
        except OSError as error:
            if error.errno not in NO_SPACE or not frees:
                raise self._refusal(error) from error
            try:
                self._renew(command, frees=True)
            except OSError as again:
                raise self._refusal(again) from again
        else:
            self._size += len(line)

    def _write_once(self, line: bytes) -> None:
        assert self._file is not None, "it is open since the first rewrite"
        try:
            self._file.write(line)
        except OSError:
            self._cut_off()
            raise
        try:
            self._file.sync()
        except OSError:
            self._cut_off(trusted=False)
            raise

    def _cut_off(self, *, trusted: bool = True) -> None:
        """Take a line back (K3). `trusted`: no fsync of this file has failed (K4)."""
        assert self._file is not None, "it is open since the first rewrite"
        self._is_whole = False
        with suppress(OSError):
            self._file.truncate(self._size)
            if trusted:
                self._file.sync()
                self._is_whole = True
                return
        with suppress(OSError):
            self._renew()

    def _taken_back(self, file: File | None, size: int) -> LiftlogError:
        """K7. `file`, `size`: before the command was written."""
        if self._file is file:
            self._size = size
            self._cut_off()
        else:
            self._is_whole = False
            with suppress(OSError):
                self._renew()
        return self._refused(DeadlineExceeded(f"{self._path}: the disk took too long; the change was not made"))

    def _refusal(self, error: OSError) -> LiftlogError:
        return self._refused(storage_error(error, f"write {self._path}"))

    def _refused(self, told: LiftlogError) -> LiftlogError:
        if not self._is_whole:
            log.error("catalog.failed path=%s error=%s", self._path, told)
            told.message += "; whether the change takes effect at the next start is not known"
            told.fields["sent"] = True
        return told

    def _renew_if_long(self) -> None:
        if self._size >= self._renew_at:
            try:
                self._renew()
            except OSError as error:
                log.warning("catalog.not_rewritten path=%s error=%s", self._path, error)

    def _renew(self, command: Mapping[str, Any] | None = None, *, frees: bool = False) -> None:
        """Put a new file in the place of the old one: the catalog as it is in memory, as one line (K2).

        Args:
            command: As if it were applied already (K5, K6).
            frees: As `Disk.replace_file` takes it.
        """
        catalog = self.catalog
        if command is not None:
            catalog = Catalog.restore(catalog.snapshot())
            catalog.apply(command)
        snapshot = catalog.snapshot()
        line = encode_line({"snapshot": snapshot})
        was_whole, self._is_whole = self._is_whole, False  # if it fails half-way, the name may be that of the new file
        try:
            self._disk.replace_file(self._path, line, frees=frees)
        except OSError:
            with suppress(OSError):  # a new file is hardly ever as long as this one: is the name still that of ours?
                self._is_whole = was_whole and self._disk.size(self._path) == self._size
            raise
        before, self._file = self._file, self._disk.open(self._path)
        self._size, self._is_whole, self._level = len(line), True, _level_of_snapshot(snapshot)
        self._renew_at = len(line) + max(len(line), GROWTH_BYTES)
        if before is not None:
            with suppress(OSError):
                before.close()


def _level_of_command(command: Mapping[str, Any]) -> int:
    """The feature level below which releases refuse it; 0: none is known to."""
    settings = (SINCE.get(key, 0) for key in command.get("settings", ()))
    return max(FENCES_SINCE if command["kind"] == "raise_fence" else 0, *settings, 0)


def _level_of_snapshot(snapshot: Mapping[str, Any]) -> int:
    """The feature level below which releases cannot read it; 0: there is none. They refuse what they do not know of a
    stream."""
    streams = snapshot["streams"]
    settings = (SINCE.get(key, 0) for key in {key for info in streams for key in info["settings"]})
    return max(FENCES_SINCE if any("fences" in info for info in streams) else 0, *settings, 0)


def _line_of(command: Mapping[str, Any]) -> bytes:
    """The command as a line that says the same when it is read.

    Raises:
        InvalidRequest: there is none; it would stop each later start, or mean something else then.
    """
    try:
        line = encode_line(command)
        if decode_lines(line, where="a command")[0] == [command]:
            return line
    except (CorruptLog, TypeError, ValueError, RecursionError):
        pass
    raise InvalidRequest(f"this command cannot be stored as JSON: {command!r:.200}")
