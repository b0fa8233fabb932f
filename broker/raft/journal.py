"""The Raft journal on disk: entries, term, vote and the snapshot, in one file that is only appended to or replaced.

    raft.log         BASE  ENTRY ...  END   ENTRY  TERM  CUT  ENTRY ...                                  zeros
                     └ replaced atomically ┘└ appended; synced before anything that promises it is sent ┘
    raft.log.marks   how far raft.log was synced, one mark after each sync, in a circle

A record is its length, the CRC-32C of the rest, its kind, and its body. BASE has who this voter is, its term and
vote, and the snapshot; the entries up to END came with it. So snapshot and the head of the log are always those of
one moment. Both files have blocks ahead of what was written (`journal_files`).

Invariants
J1  `sync` returns only once all records are durable, and a mark that says so.
J2  After an error nothing is written any more (`failure`): who has the file does not know what is in it.
J3  Synced bytes that cannot be read are damage: CorruptLog, never a shorter log. Only what lies beyond the last
    mark and the base may be torn, and is cut. (One flipped bit in the last record would look like a torn one,
    without marks.)
J4  No entry at or below the commit index is ever cut.
J5  The file and the id of the voter are one: without the file there is no id to act under.
J6  All beyond the last mark is written anew, in another file, before it counts. It may be in memory alone: after a
    failed fsync Linux shows it and never writes it, and a later fsync of the same file says nothing of that.
J7  A mark of a later file than this one says that this one was put back from a copy: damage, as J3.
J8  What must be written, is: who is asked to write more than there is room for, on a full disk, refuses before
    (`makes_room`), and a snapshot is taken before the room is used up (`is_crowded`).

Design: docs/explain/metadata.md.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, overload

from crc32c import crc32c

from broker.api.errors import CorruptLog, StorageFailed
from broker.api.plain import is_offset, parse_json
from broker.raft.journal_files import KEPT_BYTES, JournalFiles
from broker.storage.disk import NO_DESCRIPTORS, NO_SPACE, FixedDisk, FixedFile, storage_error

Entry = tuple[bytes, int, int]
"""Command, index, term."""

FORMAT: Final = 1
BASE, END, ENTRY, TERM, CUT = range(1, 6)
_HEAD: Final = struct.Struct("<IIB")
_PLACE: Final = struct.Struct("<QQ")
_MARK: Final = struct.Struct("<IQI")
MARKS_BYTES: Final = 1 << 16
"""The file of marks: the next one after this stands at its beginning."""
ROOM_BYTES: Final = 4 << 20
"""Room of the journal of a broker."""


@dataclass(slots=True, kw_only=True)
class Base:
    """The beginning of the file.

    Attributes:
        node_id: The node that owns this file. Nobody acts under this id without it (J5).
        voters: Their ids, as of the snapshot; without one the log says who they are, from its first entry on.
        snapshot: The state machine, applied up to the second of the entries that came with it; None: none yet.
    """

    node_id: str
    cluster_id: str
    voters: tuple[str, ...] = ()
    term: int = 0
    vote: str | None = None
    snapshot: Any = None
    generation: int = 0


def encode(kind: int, body: bytes) -> bytes:
    """One record."""
    return _HEAD.pack(len(body), crc32c(bytes([kind]) + len(body).to_bytes(4, "little") + body), kind) + body


def decode(data: bytes) -> tuple[list[tuple[int, bytes, int]], int]:
    """All records from the first on, as kind, body and where they end; and where the last whole one ends."""
    found, at = [], 0
    while at + _HEAD.size <= len(data):
        size, crc, kind = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + size]
        if len(body) < size or crc != crc32c(bytes([kind]) + size.to_bytes(4, "little") + body):
            break
        at += _HEAD.size + size
        found.append((kind, body, at))
    return found, at


def encode_entry(entry: Entry) -> bytes:
    """An entry as a record."""
    command, index, term = entry
    return encode(ENTRY, _PLACE.pack(index, term) + command)


@dataclass(slots=True)
class Journal:
    """The journal, with the methods that pysyncobj calls, under the names that it gives them.

    `open` and `create` make one.
    """

    disk: FixedDisk
    path: str
    base: Base
    room_bytes: int = 0
    entries: list[Entry] = field(default_factory=list)
    term: int = 0
    vote: str | None = None
    commit_index: int = 1
    failure: StorageFailed | None = None
    is_installing: int = 0  # so many `add`s repeat what came with a snapshot that was just installed
    _files: JournalFiles = field(init=False)
    _marks: FixedFile | None = None
    _end: int = 0
    _base_end: int = 0
    _synced: int = 0
    _marks_end: int = 0

    def __post_init__(self) -> None:
        self._files = JournalFiles(self.disk, self.path, self.room_bytes)

    @classmethod
    def create(
        cls, disk: FixedDisk, path: str, base: Base, entries: Sequence[Entry] = (), *, room_bytes: int = 0
    ) -> Journal:
        """A new voter or observer. Raises StorageFailed, DiskFull."""
        journal = cls(disk, path, base, room_bytes)
        journal.term, journal.vote, journal.entries = base.term, base.vote, list(entries)
        try:
            if disk.exists(f"{path}.marks"):
                disk.unlink(f"{path}.marks")  # of a file that is gone: by them this one would be too short (J3)
            journal._replace(base, entries)
        except OSError as error:
            raise storage_error(error, f"write {path}") from error
        return journal

    @classmethod
    def open(cls, disk: FixedDisk, path: str, *, room_bytes: int = 0) -> Journal:
        """Read back all that was written.

        Args:
            room_bytes: Room that is made where the disk lets; 0: none.
        Raises:
            CorruptLog: what was synced is damaged (J3): this voter is no more. StorageFailed: it cannot be read.
        """
        try:
            data = disk.read_file(path)
            marks = disk.read_file(f"{path}.marks") if disk.exists(f"{path}.marks") else b""
        except OSError as error:
            raise storage_error(error, f"read {path}") from error
        records, whole = decode(data)
        ends = [end for kind, _, end in records if kind == END]
        if not records or records[0][0] != BASE or not ends:
            raise CorruptLog(f"{path}: the base is damaged")
        journal = cls(disk, path, _base_from(records[0][1], path), room_bytes)
        marked = _marks_of(marks)
        if any(generation > journal.base.generation for generation, _, _ in marked):  # J7
            raise CorruptLog(f"{path}: older than what was synced: another file stood in its place")
        synced = max([ends[0], *(end for generation, end, _ in marked if generation == journal.base.generation)])
        if whole < synced:
            raise CorruptLog(f"{path}: damaged at byte {whole}, synced up to {synced}")
        journal.term, journal.vote = journal.base.term, journal.base.vote
        for kind, body, _ in records[1:]:
            journal._replay(kind, body)
        if journal.base.snapshot is not None:
            journal.commit_index = journal.entries[1][1]
        try:
            journal._attach()
            journal._files.tidy(data[: records[0][2]])
            if whole == synced and not data[whole:].strip(b"\0"):
                journal._end, journal._synced, journal._base_end = whole, whole, ends[0]
                journal._files.make_ready(ends[0])
            else:  # J6
                journal._replace(journal.base, journal.entries)
        except OSError as error:
            raise storage_error(error, f"open {path}") from error
        return journal

    def _replay(self, kind: int, body: bytes) -> None:
        if kind == ENTRY:
            index, term = _PLACE.unpack_from(body)
            self.entries.append((body[_PLACE.size :], index, term))
        elif kind == TERM:
            self.term, self.vote = parse_json(body)
        elif kind == CUT:
            [index] = struct.unpack("<Q", body)
            self.entries = [entry for entry in self.entries if entry[1] < index]
        elif kind != END:
            raise CorruptLog(f"{self.path}: a record of kind {kind}")

    # -- writing ----------------------------------------------------------------------------------------------

    def _write(self, record: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            self._files.write(record, self._end)
        except OSError as error:
            self._fail(error)
        self._end += len(record)

    def _fail(self, error: OSError) -> NoReturn:
        told = storage_error(error, f"write {self.path}")
        self.failure = StorageFailed(told.message)
        raise self.failure from error

    def sync(self) -> None:
        """Make durable what was written (J1). Raises StorageFailed, now and ever after (J2)."""
        if self.failure is not None:
            raise self.failure
        if self._synced == self._end:
            return
        try:
            self._files.sync()
            self._mark()
        except OSError as error:
            self._fail(error)
        self._synced = self._end

    def _mark(self) -> None:
        assert self._marks is not None
        if self._marks_end + _MARK.size > MARKS_BYTES:
            self._marks_end = 0
        mark = struct.pack("<IQ", self.base.generation, self._end)
        self._marks.write_at(mark + struct.pack("<I", crc32c(mark)), self._marks_end)
        self._marks.sync()
        self._marks_end += _MARK.size

    def _attach(self) -> None:
        self._files.attach()
        if self._marks is not None:
            return
        marks = f"{self.path}.marks"
        is_new = not self.disk.exists(marks)
        found = [] if is_new else _marks_of(self.disk.read_file(marks))
        self._marks_end = max(found)[2] + _MARK.size if found else 0
        self._marks = self.disk.open_fixed(marks, create=True)
        if self.room_bytes:
            try:
                self._marks.allocate(MARKS_BYTES)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
        if is_new:
            self.disk.sync_dir(self.path.rpartition("/")[0])

    def _replace(self, base: Base, entries: Sequence[Entry]) -> None:
        """Put a file with this base and these entries in the place of the old one. OSError: nothing has changed."""
        base.generation, base.term, base.vote = self.base.generation + 1, self.term, self.vote
        data = encode(BASE, _base_text(base)) + b"".join(map(encode_entry, entries)) + encode(END, b"")
        self._files.replace(data)
        self._files.is_unsure = True
        self._attach()
        self.base = base
        self._end = self._synced = self._base_end = len(data)
        self._files.make_ready(len(data))
        self._files.is_unsure = False

    def renew(self, snapshot: Any, voters: tuple[str, ...], entries: Sequence[Entry]) -> bool:
        """Begin the file with a snapshot, applied up to the second of `entries`; those before them go.

        Returns:
            False: there was no room, or no descriptor, and the file is the one that it was.
        Raises:
            StorageFailed: it is not known which file is there (J2).
        """
        if self.failure is not None:
            raise self.failure
        node, cluster = self.base.node_id, self.base.cluster_id
        self.sync()
        try:
            self._replace(Base(node_id=node, cluster_id=cluster, voters=voters, snapshot=snapshot), entries)
        except OSError as error:
            if error.errno in NO_SPACE | NO_DESCRIPTORS and not self._files.is_unsure:
                return False
            self._fail(error)
        return True

    def begin_anew(self, base: Base, entries: Sequence[Entry]) -> None:
        """Put the journal of another id, in another group, in the place of this one, atomically. It goes on with the
        term of this one; marks of this one do not count for it.

        Raises:
            StorageFailed, DiskFull: it is not known which file is there (J2).
        """
        self.vote, self.entries = None, list(entries)
        try:
            self._replace(base, entries)
        except OSError as error:
            raise storage_error(error, f"write {self.path}") from error

    def makes_room(self, byte_count: int, *, grows: bool = False) -> bool:
        """Whether commands of so many bytes can be written, however full the disk is (J8).

        Args:
            grows: The catalog grows by them: they leave half of the room to others, and an eighth of the file.
        Raises:
            StorageFailed: J2.
        """
        kept = max(self._room // 2, self._files.size // 8) if grows else 0
        try:
            return self._files.makes_room(self._end + byte_count + kept)
        except OSError as error:
            self._fail(error)

    @property
    def is_crowded(self) -> bool:
        """Whether a snapshot should make room."""
        return self.room_bytes > 0 and 3 * (self._end - self._base_end) > self._room

    @property
    def _room(self) -> int:
        """Bytes for commands, used or not."""
        return max(0, self._files.size - KEPT_BYTES - self._base_end)

    def close(self) -> None:
        """Give the files back; there is nothing to write."""
        self._files.close()
        if self._marks is not None:
            self._marks.close()
        self._marks = None

    # -- what pysyncobj calls ---------------------------------------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        entry = (bytes(command), idx, term)
        assert not self.entries or self.entries[-1][1] + 1 == idx, f"entry {idx} after {self.entries[-1][1]}"
        if self.is_installing:
            self.is_installing -= 1
        else:
            self._write(encode_entry(entry))
        self.entries.append(entry)

    def clear(self) -> None:
        assert self.is_installing, "nothing but an installed snapshot takes the place of the log"
        self.entries = []

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        index = self.entries[entryFrom][1]
        assert index > self.commit_index, f"J4: entry {index} is committed, {self.commit_index} is the last"
        self._write(encode(CUT, struct.pack("<Q", index)))
        del self.entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:
        """The file begins there already: `renew` was before."""
        del self.entries[:entryTo]

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self.entries[item]

    def __len__(self) -> int:
        return len(self.entries)

    def _destroy(self) -> None:
        pass

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        if raftCommitIndex > self.commit_index:
            self.sync()  # what is applied next is durable here: of one voter it is the only copy
            self.commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return self.commit_index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        self._write(encode(TERM, json.dumps([term, votedForNodeId]).encode()))
        self.term, self.vote = term, votedForNodeId

    def getCurrentTerm(self) -> int:
        return self.term

    def getVotedForNodeId(self) -> str | None:
        return self.vote

    def onOneSecondTimer(self) -> None:
        pass

    def entry_at(self, index: int) -> Entry | None:
        """The entry of that index; None: it is not in the log, or in the snapshot only."""
        first = self.entries[0][1] if self.entries else index + 1
        return self.entries[index - first] if first <= index < first + len(self.entries) else None


def _base_text(base: Base) -> bytes:
    value = {
        "format": FORMAT,
        "node_id": base.node_id,
        "cluster_id": base.cluster_id,
        "voters": list(base.voters),
        "term": base.term,
        "vote": base.vote,
        "snapshot": base.snapshot,
        "generation": base.generation,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def _base_from(body: bytes, path: str) -> Base:
    try:
        value = parse_json(body)
        known = value.pop("format")
        base = Base(**{**value, "voters": tuple(value["voters"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptLog(f"{path}: unreadable base: {error}") from error
    if known != FORMAT:
        raise CorruptLog(f"{path}: journal format {known}, this release knows {FORMAT}")
    return base


def _marks_of(data: bytes) -> list[tuple[int, int, int]]:
    """The generation of the file that each is of, how far that was synced, and where the mark stands."""
    found = []
    for at in range(0, len(data) - _MARK.size + 1, _MARK.size):
        of, end, crc = _MARK.unpack_from(data, at)
        if crc == crc32c(data[at : at + _MARK.size - 4]):
            found.append((of, end, at))
    return found


def encode_transfer(snapshot: Any, voters: tuple[str, ...], prev: Entry, last: Entry) -> bytes:
    """A snapshot for another broker."""
    pair = [[base64.b64encode(command).decode(), index, term] for command, index, term in (prev, last)]
    return json.dumps({"snapshot": snapshot, "voters": list(voters), "entries": pair}).encode()


def decode_transfer(data: bytes) -> tuple[Any, tuple[str, ...], Entry, Entry]:
    """Read what `encode_transfer` wrote. Raises ValueError."""
    try:
        value = parse_json(data)
        prev, last = ((base64.b64decode(c), int(index), int(term)) for c, index, term in value["entries"])
        if not all(map(is_offset, (*prev[1:], *last[1:]))):
            raise ValueError("a place that is none")
        return value["snapshot"], tuple(value["voters"]), prev, last
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"malformed snapshot: {error!r}") from error
