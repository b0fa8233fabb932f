"""Whether this broker is in the group, was to form it, or joins: what its folder says, on disk.

    raft.json    {"state": "forming", "node_id"}                 it has an id, and no journal has ever acted under it
                 {"state": "member", "group", "first", "node_id"}  written after the journal, and before it acts
                 {"state": "joining", ...}                        of a group that is given up: it joins another one
    raft.log     the journal (broker/raft/journal.py)

A group is `<cluster id>/<digest of its first voters' ids>`: one that was formed by others, or at another time, is
another group, and its messages are not heard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.api.errors import CorruptLog
from broker.api.plain import parse_json
from broker.storage.disk import Disk, storage_error

FILE: Final = "raft.json"
JOURNAL: Final = "raft.log"
FORMING, MEMBER = "forming", "member"
JOINING = "joining"
"""A broker says this of itself if it has no journal and forms none. It is on disk only where a group was given up
(`rescue.py`), with the node_id, group and first of that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The content of raft.json.

    Attributes:
        node_id: Under which this broker was to form the group, or has formed or joined it.
        group: The member's. first: The ids of the first voters, in their order.
    """

    state: str
    node_id: str
    group: str = ""
    first: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"state": self.state, "node_id": self.node_id, "group": self.group, "first": list(self.first)}


def group_of(cluster_id: str, first: Sequence[str]) -> str:
    """The name of the group that these voters form."""
    return f"{cluster_id}/{hashlib.sha256(json.dumps(list(first)).encode()).hexdigest()[:16]}"


def load(disk: Disk, folder: str) -> Membership | None:
    """Read the folder's membership; None: none yet.

    Raises:
        CorruptLog: it cannot be read. StorageFailed: the disk refuses.
    """
    path = f"{folder}/{FILE}"
    try:
        if not disk.exists(path):
            return None
        return decode(disk.read_file(path), path)
    except OSError as error:
        raise storage_error(error, f"read {path}") from error


def decode(data: bytes, path: str = FILE) -> Membership:
    """Raises CorruptLog."""
    try:
        values = parse_json(data)
        state, node_id, group, first = (values[key] for key in ("state", "node_id", "group", "first"))
        is_sound = state in (FORMING, MEMBER, JOINING) and isinstance(group, str) and isinstance(first, list)
        if not is_sound or not all(isinstance(each, str) and each for each in [node_id, *first]):
            raise ValueError("a field is missing, or is something else")
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptLog(f"{path} is damaged: {error}", path=path) from error
    return Membership(state=state, node_id=node_id, group=group, first=tuple(first))


def store(disk: Disk, folder: str, membership: Membership) -> None:
    """Durable when it returns. Raises StorageFailed, DiskFull."""
    path = f"{folder}/{FILE}"
    try:
        disk.replace_file(path, json.dumps(membership.as_dict(), indent=1).encode() + b"\n")
    except OSError as error:
        raise storage_error(error, f"write {path}") from error
