"""What happens to streams and consumer groups, until it stands in the stream `__activity`. Part of the catalog.

    a command changes a stream, or a group ─► event, in the catalog ─► leader of `__activity`: append, committed
                                                    ▲                                          │
                                                    └────── forget_activity, through its id ───┘

So an event comes with what it tells of, in one command: it survives controllers, snapshots and brokers, and who writes
it needs no history of commands. It is told once it is forgotten here, and told again if somebody died in between.

Q1  There are events while there is the stream, and from its creation on.
Q2  Ids only grow, also beyond a catalog that has lost its last commands: none is below `floor` (`groups.G9`), which
    rises with each election. So a gap says nothing.
Q3  An event tells of a change: a command that changes nothing is none.
Q4  What nobody writes is bounded, in number and in bytes, as each snapshot has it: the oldest go, and are counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

PENDING_MAX: Final = 10_000
PENDING_BYTES_MAX: Final = 8 << 20
"""As JSON. A member that joins may name 64 streams."""

CREATE_STREAM: Final = "create_stream"
DELETE_STREAM: Final = "delete_stream"
PAUSE_STREAM: Final = "pause_stream"
RESUME_STREAM: Final = "resume_stream"
SET_STREAM_READ_ONLY: Final = "set_stream_read_only"
JOIN_GROUP: Final = "join_group"
LEAVE_GROUP: Final = "leave_group"

Event = Mapping[str, Any]
"""`id`, `op`, and by `op`: `name` of a stream and `partitions` (how many), `read_only`; `group` and `consumer`,
`streams` that it reads, `expired`."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The state. It is replaced, never changed: a reader on another thread keeps what it has.

    Attributes:
        last: The id of the newest event there ever was.
        lost: How many went unwritten (Q4).
        pending: Those that are not forgotten, in order.
        byte_count: Of these.
    """

    last: int = 0
    lost: int = 0
    pending: tuple[Event, ...] = ()
    byte_count: int = 0

    def noted(self, op: str, *, floor: int, **fields: Any) -> Activity:
        """With one more."""
        event = {"id": max(self.last, floor) + 1, "op": op, **fields}
        pending, byte_count, over = (*self.pending, event), self.byte_count + _size(event), 0
        while len(pending) - over > PENDING_MAX or byte_count > PENDING_BYTES_MAX:
            byte_count -= _size(pending[over])
            over += 1
        return Activity(event["id"], self.lost + over, pending[over:], byte_count)

    def forgotten(self, through: int) -> Activity:
        """Without those up to this id."""
        gone = list(takewhile(lambda event: event["id"] <= through, self.pending))  # in order: what stays costs nothing
        byte_count = self.byte_count - sum(map(_size, gone))
        return Activity(self.last, self.lost, self.pending[len(gone) :], byte_count)

    def snapshot(self) -> dict[str, Any]:
        """As JSON values; nothing, if there was never an event."""
        if not self.last:
            return {}
        return {"activity": {"last": self.last, "lost": self.lost, "pending": [dict(each) for each in self.pending]}}

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Activity:
        """What `snapshot` described. Raises TypeError, ValueError, KeyError: it is none."""
        kept = snapshot.get("activity")
        if kept is None:
            return cls()
        pending = tuple(dict(each) for each in kept["pending"])
        numbers = [kept["last"], kept["lost"], *(each["id"] for each in pending)]
        if any(type(number) is not int for number in numbers) or any(type(each["op"]) is not str for each in pending):
            raise TypeError("an event of the activity is none")
        return _with(kept["last"], kept["lost"], pending)


def _with(last: int, lost: int, pending: tuple[Event, ...]) -> Activity:
    return Activity(last, lost, pending, sum(map(_size, pending)))


def _size(event: Event) -> int:
    """What it takes in a list of JSON; the same on each broker, also after a snapshot (`groups.G10`)."""
    return len(json.dumps(event)) + 2
