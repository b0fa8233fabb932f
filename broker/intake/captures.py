"""Partitions that are captured one by one, as they are led here; others of the same stream are captured elsewhere.

    partition_by = subject_suffix    a subject, a subscription and an attachment for each partition: `name/number`
    otherwise                        one subscription for those that are led here; what hashes to another is passed over

E1  `begin` and `end` of one attachment come one after the other, in the order in which they were called: two
    subscriptions of one subject would bring each message twice.
E2  A partition that comes or goes swaps no builder of another: a message that is half received goes the way that was
    decided for it (`flush.N5`), also one of the partition that goes. That one says what becomes of it.
E3  Messages that were captured before an `end` have been given to the partition when `end` returns.
E4  Many that begin at the same time are confirmed by one question to the server. Those of one attachment that are asked
    for in a row begin together: ten thousand tasks took as long as all else of a start.
E5  Where a hash decides, messages are sorted by one number of partitions in each slot: another number means other
    slots, also for the partitions that stay. Messages that had gathered in the former ones, or were half received,
    name the number by which they were sorted, and their partition may refuse them (`acceptance.P15`).
E6  Messages that the server sent before it confirmed were given to the partition when `begin` returns. A new leadership
    takes nothing before that: what another broker has taken by the former number is not taken here by the new one.
E7  A broker that is alone takes all of a stream or none of it: until all partitions are there, by an added number too,
    its messages are sorted as before; and none is taken once one of them goes, as for a pause. What hashes to one that
    is not there would be passed over, and nobody else is there to take it.
E8  It goes on under altered settings without a question to the server where it subscribes to nothing new: the answer
    comes behind all that the server sends, and nobody else may have taken any of it by former ones (E6).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.intake.flush import Flusher, FlushSlot
from broker.metadata.catalog import StreamInfo
from broker.metadata.overlap import subject_of, subjects_of
from broker.node.partitions.partition import Partition


@dataclass(slots=True, eq=False)
class Attachment:
    """One stream's subscriptions, or one partition's: sid -> its slots.

    Attributes:
        sids: Those that the present connection has, in order; routed.
        is_detached: It gets no more of them.
        coming: Partitions that are there, and wait for the others (E7).
    """

    info: StreamInfo
    slots: list[FlushSlot]
    sids: list[int] = field(default_factory=list)
    is_detached: bool = False
    coming: list[Partition] = field(default_factory=list)

    @property
    def subscriptions(self) -> list[tuple[str, list[FlushSlot]]]:
        """Subject -> the slots that its messages may go to."""
        if not self.slots:  # E7
            return []
        settings = self.info.settings
        if settings.subject is None or settings.partition_by != "subject_suffix":
            return [(subject, self.slots) for subject in subjects_of(settings)]
        return [(subject_of(settings, slot.partition.partition), [slot]) for slot in self.slots]


class Captures:
    """See the module. On the intake thread's loop.

    Args:
        attachments: All of the driver, by key.
        renew: Routes the subscriptions of an attachment anew.
        subscribe: Makes and confirms the subscriptions of attachments that are missing.
        detach: Ends one attachment, by its key. What the server had sent was given to the partitions then.
        take_in_sent: Has all that parsed.
        takes_all: The broker is alone (E7).
    """

    def __init__(
        self,
        attachments: dict[str, Attachment],
        flusher: Flusher,
        *,
        renew: Callable[[Attachment, StreamInfo], None],
        subscribe: Callable[[Sequence[Attachment]], Awaitable[None]],
        detach: Callable[[str], Awaitable[None]],
        take_in_sent: Callable[[], Awaitable[None]],
        takes_all: bool = False,
    ) -> None:
        self._takes_all = takes_all
        self._attachments = attachments
        self._flusher = flusher
        self._renew = renew
        self._subscribe = subscribe
        self._detach = detach
        self._take_in_sent = take_in_sent
        self._keys: weakref.WeakKeyDictionary[Partition, str] = weakref.WeakKeyDictionary()
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._round: asyncio.Task[None] | None = None  # that has not begun
        self._of_round: list[Attachment] = []

    async def begin(self, info: StreamInfo, *partitions: Partition) -> None:
        """Capture partitions of one attachment; again: under altered settings. Returns when the server has confirmed
        that."""
        partitions = tuple(each for each in partitions if each.partition < info.settings.partitions)
        if info.settings.subject is None or not partitions:
            return  # nothing is sorted to one that is being added
        is_hashed, key = info.settings.partition_by != "subject_suffix", self.key(info, partitions[0])
        self._keys.update(dict.fromkeys(partitions, key))
        async with self._lock(key):
            attachment = self._attachments.get(key)
            if attachment is not None and attachment.info.incarnation != info.incarnation:
                await self._detach(key)
                attachment = None
            if attachment is None:
                attachment = self._attachments[key] = Attachment(info, [])
            count = info.settings.partitions if is_hashed else 0
            begun = {each.partition: each for each in partitions}
            others = [each for each in attachment.coming if each.partition not in begun]
            coming = attachment.coming = [*others, *begun.values()]
            by_number = {each.partition: each for each in coming}
            gone = [slot for slot in attachment.slots if _is_other(slot, by_number)]  # their logs were made anew
            stays = {slot.partition: slot for slot in attachment.slots if slot not in gone}
            if self._takes_all and len({*stays, *coming}) < count:  # E7
                return
            attachment.coming = []
            gone += [slot for slot in stays.values() if slot.sorted_by != count]  # E5
            before = attachment.slots
            for each in dict.fromkeys((*stays, *coming)):
                if each not in stays or stays[each].sorted_by != count:
                    stays[each] = self._flusher.add(info, each, sorted_by=count)
            attachment.slots = list(stays.values())
            self._renew(attachment, info)
            is_all_there = attachment.slots == before and len(attachment.sids) == len(attachment.subscriptions)
            if self._takes_all and is_all_there:  # E8
                return
            for slot in gone:
                await self._flusher.remove(slot)
            self._of_round.append(attachment)
            if self._round is None:  # E4
                self._round = asyncio.get_running_loop().create_task(self._confirm())
            await asyncio.shield(self._round)
            for slot in attachment.slots:
                if is_hashed and begun.get(slot.partition.partition) is slot.partition:
                    self._flusher.flush(slot)  # E6

    async def end(self, partition: Partition, *, with_sent: bool = False) -> None:
        """Capture it no more. `with_sent`: but what the server has sent by now."""
        key = self._keys.get(partition)
        if key is None:
            return
        async with self._lock(key):
            attachment = self._attachments.get(key)
            if attachment is not None:
                attachment.coming = [each for each in attachment.coming if each is not partition]
            leaving = [] if attachment is None else [slot for slot in attachment.slots if slot.partition is partition]
            if attachment is None or (not leaving and (attachment.slots or attachment.coming)):
                return
            if self._takes_all or len(leaving) == len(attachment.slots):
                stays = [slot.partition for slot in attachment.slots if slot not in leaving]
                await self._detach(key)
                if coming := [*stays, *attachment.coming]:  # E7
                    self._attachments[key] = Attachment(attachment.info, [], coming=coming)
                return
            if with_sent:
                await self._take_in_sent()
            attachment.slots = [slot for slot in attachment.slots if slot not in leaving]
            self._renew(attachment, attachment.info)
            for slot in leaving:
                await self._flusher.remove(slot)

    @staticmethod
    def key(info: StreamInfo, partition: Partition) -> str:
        """Of the attachment that a partition belongs to."""
        is_hashed = info.settings.partition_by != "subject_suffix"
        return info.name if is_hashed else f"{info.name}/{partition.partition}"

    def _lock(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()  # lives as long as somebody waits for it
        return lock

    async def _confirm(self) -> None:
        await asyncio.sleep(0)  # who comes in the same turn of the loop is part of it
        attachments, self._of_round, self._round = self._of_round, [], None
        await self._subscribe(attachments)


def _is_other(slot: FlushSlot, coming: Mapping[int, Partition]) -> bool:
    """Whether one of the same number is to take its place."""
    return coming.get(slot.partition.partition, slot.partition) is not slot.partition
