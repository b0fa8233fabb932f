"""What consumers of Liftbridge's groups have been told to read, so that they read on what stays theirs.

A client gives up a partition that is not in an answer, and begins all of them anew when the epoch of an answer is
another one. Grants here have an epoch each. Of these comes one of the whole share:

    poll ─► grants ─► asked back: not in the answer; released when the consumer comes again ─► others have it
                  └─► all others: in the answer, under the epoch of the share

W1  The epoch of a share changes when a partition that the consumer has been told before has another grant by now. What
    it reads of that one has ended. Else it stays, and a client goes on reading what it keeps.
W2  What is asked back is released with the poll after the one that left it out: by then the client has stopped.
W3  Who does not know what was told last (another broker, or after a while) begins with the greatest epoch of all
    grants. So no client takes a partition for one that it still reads, if its grant is another one.
W4  What was told under another coordinator is not known: its clients have asked another broker since, or may have.
W5  A partition is read by the subscription that came last of those that have begun it. Its client may not know yet that
    the one before is broken, or may have it twice by mistake: what it reads is done once.
W6  Who holds a partition is told once what a disk has lost at the place of its group (`subscribe.B7`): who holds it
    next may be a program that has heard nothing of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple

SHARES_MAX: Final = 20_000
"""Consumers that a broker remembers. One that it has forgotten begins its partitions anew."""

READERS_MAX: Final = 100_000
"""Partitions of groups whose last subscription a broker remembers. Of one that it has forgotten each goes on. And
grants whose consumers were told of a loss: one that it has forgotten is told again."""

Partition = tuple[str, int]


class Consumer(NamedTuple):
    """One membership."""

    group: str
    member: str
    session: int


@dataclass(slots=True)
class LastShare:
    """What a consumer has been told.

    Attributes:
        grants: The epoch of each partition that it was ever told.
        leaving: What was left out last, as it is asked back, with its epoch.
        at_s: When.
        under: Which coordinator there was.
    """

    epoch: int
    at_s: float
    under: Hashable = None
    grants: dict[Partition, int] = field(default_factory=dict)
    leaving: dict[Partition, int] = field(default_factory=dict)


class Shares:
    """See the module. On one loop."""

    def __init__(self) -> None:
        self._told: OrderedDict[Consumer, LastShare] = OrderedDict()
        self._readers: OrderedDict[tuple[str, Partition], int] = OrderedDict()
        self._reader_numbers = count()
        self._lost: OrderedDict[int, int] = OrderedDict()  # epoch of a grant -> up to where its consumer was told (W6)

    def leaving(self, consumer: Consumer) -> list[dict[str, Any]]:
        """What it has stopped to read since, as a poll names it (W2)."""
        told = self._told.get(consumer)
        if told is None:
            return []
        return [
            {"stream": stream, "partition": number, "epoch": epoch}
            for (stream, number), epoch in sorted(told.leaving.items())
        ]

    def tell(
        self,
        consumer: Consumer,
        held: Iterable[Mapping[str, Any]],
        *,
        now_s: float,
        timeout_s: float,
        under: Hashable = None,
    ) -> tuple[int, list[Partition]]:
        """What a consumer is answered: the epoch of its share, and the partitions.

        Args:
            held: Its grants.
            timeout_s: What was told longer ago is not known any more (W3).
            under: The coordinator of now (W4).
        """
        grants, leaving = dict[Partition, int](), dict[Partition, int]()
        for each in held:
            (leaving if each["is_revoked"] else grants)[each["stream"], each["partition"]] = each["epoch"]
        told = self._told.pop(consumer, None)
        newest = max([consumer.session, *grants.values()])
        if told is None or now_s - told.at_s > timeout_s or told.under != under:
            told = LastShare(newest, now_s, under)
        elif any(told.grants.get(at, epoch) != epoch for at, epoch in grants.items()):  # W1
            told.epoch = newest
        told.grants.update(grants)
        told.leaving, told.at_s = leaving, now_s
        self._told[consumer] = told
        while len(self._told) > SHARES_MAX:
            self._told.popitem(last=False)
        return told.epoch, sorted(grants)

    def number(self) -> int:
        """Of a subscription that comes: those that come later have greater ones (W5)."""
        return next(self._reader_numbers)

    def reads(self, group: str, at: Partition, number: int) -> None:
        """A subscription has begun a partition."""
        last = self._readers.pop((group, at), number)
        self._readers[group, at] = max(last, number)
        while len(self._readers) > READERS_MAX:
            self._readers.popitem(last=False)

    def is_last(self, group: str, at: Partition, number: int) -> bool:
        """Whether no later subscription has begun this partition, as far as is known."""
        return self._readers.get((group, at), number) == number

    def is_news(self, epoch: int, end: int) -> bool:
        """The consumer of a grant is told that a disk has lost what is before an offset. Whether that is news (W6)."""
        known = self._lost.pop(epoch, -1)
        self._lost[epoch] = max(known, end)
        while len(self._lost) > READERS_MAX:
            self._lost.popitem(last=False)
        return end > known

    def forget(self, consumer: Consumer) -> None:
        """It has left."""
        self._told.pop(consumer, None)
