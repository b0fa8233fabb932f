"""From a path that somebody names to the partitions that it holds, and whether a broker has them open.

    <data>/                              all partitions of the folder (also DATA of `liftlog up`, one level above)
    <data>/streams/orders                all partitions of a stream
    <data>/streams/orders/<incarnation>/0        one
    .../00000000000000004711.arrows      one segment of it
    a copy of any of these elsewhere     the same; nobody can have it open

U1  Asking who uses a folder hinders nobody: a shared lock is tried and given back at once, never waited for, and no
    lock file is made.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.api.errors import FolderNotAllowed, InvalidRequest
from broker.api.plain import parse_json
from broker.storage.folder import BROKER_FILE, FORMAT_VERSION, GROUP_FILES, LOCK_FILE, STREAMS_FOLDER, check_format
from broker.storage.segments.checkpoint import PARTITION_FILE, LogIdentity
from broker.storage.segments.segment import parse_name

DEPTH_MAX: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFolder:
    """One partition's folder.

    Attributes:
        folder: Absolute, symbolic links resolved.
        root: The data folder that it is in; None: a copy somewhere else.
        has_others: That is of a broker in a cluster, so others may keep the log, too. Its own catalog would tell.
        expected: The partition that its place in the data folder says it holds; None: nothing can be said.
        only: Base offset of the segment that was named; None: the whole folder.
    """

    folder: str
    root: str | None = None
    has_others: bool = False
    expected: LogIdentity | None = None
    only: int | None = None

    @property
    def name(self) -> str:
        """Short, for people: `orders/<incarnation>/0`, or the path."""
        if self.expected is None:
            return self.folder
        return f"{self.expected.stream}/{self.expected.incarnation}/{self.expected.partition}"


def find_places(path: str) -> list[PartitionFolder]:
    """The partitions of a path, sorted. n = 0 for a data folder without streams.

    Raises:
        InvalidRequest: nothing of liftlog's is there; field `path`.
        FolderNotAllowed: it may not be looked into.
        UnknownFormatVersion: the data folder is of another format version, so what is in it is not known.
    """
    path = os.path.realpath(path)
    try:
        if os.path.isfile(path):
            name = parse_name(os.path.basename(path))
            if name is None:
                raise InvalidRequest(f"{path} is neither a segment nor a folder", path=path)
            return [_place(os.path.dirname(path), only=name[0])]
        if not os.path.isdir(path):
            raise InvalidRequest(f"{path}: no such file or folder", path=path)
        folders = sorted(_partitions(path, DEPTH_MAX), key=_order)
    except PermissionError as error:
        raise FolderNotAllowed(f"{error.filename}: no permission to read it", path=error.filename) from error
    if not folders and not os.path.exists(f"{path}/{BROKER_FILE}"):
        raise InvalidRequest(f"{path}: not a segment, partition, stream or data folder of liftlog", path=path)
    if not folders:
        _read_owner(path)
    return [_place(folder) for folder in folders]


def used_by(root: str | None) -> int | None:
    """The process that has a data folder open: its id, 0 when that is not known; None: nobody has (U1)."""
    if root is None:
        return None
    try:
        fd = os.open(f"{root}/{LOCK_FILE}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        return int(pid) if pid.isdigit() else 0
    finally:
        os.close(fd)  # the lock goes with it
    return None


def owner_of(root: str) -> dict[str, object] | None:
    """Read `broker.json`: format_version, cluster_id, broker_id; None: it is missing or cannot be read."""
    try:
        with open(f"{root}/{BROKER_FILE}", "rb") as file:
            values = parse_json(file.read())
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def _partitions(folder: str, depth: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = list(entries)
    if any(entry.name == PARTITION_FILE or parse_name(entry.name) for entry in found):
        yield folder
        return
    for entry in found if depth else ():
        if entry.is_dir():
            yield from _partitions(entry.path, depth - 1)


def _order(folder: str) -> tuple[str, int, str]:
    above, _, name = folder.rpartition("/")
    return (above, int(name), "") if name.isdigit() else (above, -1, name)


def _read_owner(root: str) -> dict[str, object]:
    """As `owner_of`, and empty where that knows nothing: what stands beside it can be looked at all the same."""
    owner = owner_of(root) or {}
    check_format(root, owner.get("format_version", FORMAT_VERSION))
    return owner


def _place(folder: str, only: int | None = None) -> PartitionFolder:
    root = folder
    while root != "/" and not os.path.exists(f"{root}/{BROKER_FILE}"):
        root = os.path.dirname(root)
    if root == "/":
        return PartitionFolder(folder=folder, only=only)
    parts = os.path.relpath(folder, root).split("/")
    cluster_id = _read_owner(root).get("cluster_id")
    expected = None
    if len(parts) == 4 and parts[0] == STREAMS_FOLDER and parts[3].isdigit() and isinstance(cluster_id, str):
        expected = LogIdentity(cluster_id=cluster_id, stream=parts[1], incarnation=parts[2], partition=int(parts[3]))
    has_others = any(os.path.exists(f"{root}/{name}") for name in GROUP_FILES)
    return PartitionFolder(folder=folder, root=root, has_others=has_others, expected=expected, only=only)
