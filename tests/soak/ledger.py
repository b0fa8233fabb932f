"""All that everybody was told: the messages and their acks, what readers saw, and what the operator did when.

A message is known by its id, which stands in the header `Soak-Id`; its value follows from the id and its size, so a
record can be checked by itself. Times are those of `time.monotonic`. Thread-safe by the interpreter's lock: each field
has one writer.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ID_HEADER = "Soak-Id"
BLOCK = random.Random(0).randbytes(4 << 20)
SIZES = (0, 1, 40, 100, 100, 900, 900, 5_000, 20_000, 20_000, 20_000, 70_000, 300_000)
NEAR_S = 4.0
SHOWN_MAX = 40
HEARD_S = 10.0
"""So long after the answer a broker that stood still may go by the setting of before."""


def value_of(identity: str, size: int) -> bytes:
    """The value of the message with this id."""
    start = zlib.crc32(identity.encode()) % (len(BLOCK) // 2)
    return BLOCK[start : start + size]


class Violation(AssertionError):
    """Something that was promised does not hold. `since_s` to `until_s`: when that must have come about."""

    def __init__(self, text: str, since_s: float = 0.0, until_s: float = 0.0) -> None:
        super().__init__(text)
        self.since_s = since_s
        self.until_s = until_s


@dataclass(slots=True)
class Message:
    """One record to be, and what its sender knows of it.

    Attributes:
        first_s, last_s: Times of the first and the latest try.
        offset, partition: As acked; -1: not acked; partition -2: the ack did not say.
        acked_s: When.
        is_refused: Its sender was told that it is not stored.
        repeats: It may be sent again under its id.
    """

    identity: str
    stream: str
    size: int
    key: str = ""
    repeats: bool = False
    first_s: float = 0.0
    last_s: float = 0.0
    partition: int = -1
    offset: int = -1
    acked_s: float = 0.0
    is_refused: bool = False

    @property
    def value(self) -> bytes:
        return value_of(self.identity, self.size)

    def is_as_stored(self, value: bytes | None) -> bool:
        return value is not None and len(value) == self.size and value == self.value


@dataclass
class History:
    """All that the operator did to one stream.

    Attributes:
        created_s: When the incarnation that is there now had been made.
        windows: (begin, end, milliseconds) of each time for which ids may have been remembered so long, 0: not at all.
            None: it has no ids.
        grown: (begin, end) of each time that partitions were added.
        trimmed: Per partition the greatest offset below which records were to go.
        may_expire: Retention may take records; may_compact: compaction.
        is_loose: Acked before it is durable (`fsync = interval`).
    """

    name: str
    created_s: float = 0.0
    windows: list[tuple[float, float, int]] = field(default_factory=list)
    grown: list[tuple[float, float]] = field(default_factory=list)
    trimmed: dict[int, int] = field(default_factory=dict)
    may_expire: bool = False
    may_compact: bool = False
    is_loose: bool = False

    def made_anew(self, window_ms: int) -> None:
        self.created_s = time.monotonic()
        self.trimmed, self.grown, self.windows = {}, [], [(self.created_s, float("inf"), window_ms)]

    @contextmanager
    def window_changes(self, window_ms: int) -> Iterator[None]:
        """Ids are remembered for another time from somewhere within on; if it raises, for the one or the other."""
        begun_s = time.monotonic()
        self.windows.append((begun_s, float("inf"), window_ms))
        yield
        done_s = time.monotonic() + HEARD_S
        self.windows = [(begin, min(end, done_s), ms) for begin, end, ms in self.windows[:-1]] + self.windows[-1:]

    def least_window_ms(self, since_s: float, until_s: float) -> int:
        """The shortest time for which ids may have been remembered at some moment between the two."""
        return min((ms for begin, end, ms in self.windows if begin <= until_s and since_s <= end), default=0)


class Story:
    """The operations in order, as a person reads them."""

    def __init__(self, path: Path) -> None:
        self.began_s = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self._file = path.open("w", buffering=1)

    def tell(self, text: str) -> None:
        now_s = time.monotonic()
        self.lines.append((now_s, text))
        self._file.write(f"{now_s - self.began_s:9.3f}  {text}\n")

    def near(self, since_s: float, until_s: float) -> str:
        """The operations between and near two moments; without them the last ones."""
        if not until_s:
            since_s = until_s = self.lines[-1][0] if self.lines else 0.0
        found = [(at, text) for at, text in self.lines if since_s - NEAR_S <= at <= until_s + NEAR_S]
        shown = [f"  {at - self.began_s:9.3f}  {text}" for at, text in found[-SHOWN_MAX:]]
        left = len(found) - len(shown)
        return "\n".join([*([f"  ({left} before)"] if left else []), *shown])

    def close(self) -> None:
        self._file.close()


class Ledger:
    """All of it.

    Attributes:
        messages: By id.
        freshest_s: Per stream, when the latest of its acked messages had first been sent.
        seen: Per (stream, incarnation, partition): offset -> id, as readers saw it.
        violations: Violations that were met on the way.
        harmed_s: When pages were lost for the last time (a power cut, a failed fsync); 0: never.
        clocks_set: When a clock was set.
        are_apart: The clocks of brokers differ: timestamps say nothing once another one leads.
        is_over: Nobody need wait for what is not acked yet.
    """

    def __init__(self, story: Story) -> None:
        self.story = story
        self.messages: dict[str, Message] = {}
        self.histories: dict[str, History] = {}
        self.freshest_s: dict[str, float] = {}
        self.seen: dict[tuple[str, str, int], dict[int, str]] = {}
        self.batches: dict[int, tuple[int, int]] = {}
        self.violations: deque[Violation] = deque()
        self.harmed_s = 0.0
        self.clocks_set: list[float] = []
        self.are_apart = False
        self.is_over = False
        self.ack_count = 0
        self.repeat_count = 0

    def new(self, message: Message) -> Message:
        self.messages[message.identity] = message
        return message

    def acked(self, message: Message, partition: int, offset: int) -> None:
        """A message was acknowledged for the first time."""
        message.partition, message.offset, message.acked_s = partition, offset, time.monotonic()
        self.ack_count += 1
        self.repeat_count += message.last_s != message.first_s
        self.note_progress(message.stream, message.first_s)

    def note_progress(self, what: str, first_s: float) -> None:
        self.freshest_s[what] = max(self.freshest_s.get(what, 0.0), first_s)

    def give_up(self) -> None:
        """Something was found: nobody need wait for acks any more."""
        self.is_over = True

    def violate(self, text: str, since_s: float = 0.0, until_s: float = 0.0) -> None:
        """Note what must not be; the soak ends at its next look."""
        self.violations.append(Violation(text, since_s, until_s))
        self.story.tell(f"VIOLATED {text[:300]}")
