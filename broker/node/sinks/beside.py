"""The companion of a partition: an internal partition that has its stages, led by the broker that leads it.

    first stage ─► create ─► first election ─► order of the replicas: this broker first ─► elected ─► led here

It is asked for when it is needed, by the leader of the partition, again and again until it is there. The catalog
decides; an answer that is lost costs a repetition.

B1  Only who leads the partition, by the catalog, asks for its companion. Two who believe so ask in turns until one of
    them has heard; neither has an effect on what is stored.
B2  A companion that has members in sync stays with them: this broker joins them, it does not replace them. Nor does it
    replace those that may lead, if nobody is in sync: what was staged is theirs alone.
    A move that waits for a broker which is dead is no obstacle: another one takes its place.
B3  One question about a companion is out at a time, and the next one not before `PAUSE_S`.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from broker.api.errors import LiftlogError, NotReady
from broker.api.stream import StreamSettings, stages_of
from broker.common.elapsed import wall_us
from broker.common.waiting import THREADS, Waits
from broker.metadata.catalog import COMMAND_VERSION, Catalog, StreamInfo
from broker.metadata.partition import PartitionState, Place
from broker.node.partitions.partition import Partition
from broker.node.sinks.hidden import ReplicatedStageLog
from broker.node.sinks.stage_log import SEGMENT_BYTES, HiddenLog
from broker.node.wiring import CatalogService

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.25
LOOK_S: Final = 0.02
REPLICAS: Final = 3
SETTINGS: Final[dict[str, Any]] = {
    "subject": None,
    "retention_ms": None,
    "retention_bytes": None,
    "retention_records": None,
    "segment_bytes": SEGMENT_BYTES,
    "fsync": "batch",
    "coalesce_min_batch_bytes": 0,  # a part is a commit group, and stays as it is
}


class Companions:
    """See the module. Thread-safe; `of` blocks.

    Args:
        find: The replica of a partition that is open here, led or not.
        new_id: An incarnation that no stream has.
        now_us: The time of day.
    """

    def __init__(
        self,
        me: str,
        service: CatalogService,
        find: Callable[[Place], Partition | None],
        *,
        waits: Waits = THREADS,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        self._waits = waits
        self._new_id, self._now_us = new_id, now_us
        self._me = me
        self._service = service
        self._find = find
        self._lock = threading.Lock()
        self._asked_s: dict[Place, float] = {}  # B3: not before

    in_folder = False

    def log_of(self, main: Partition, companion: Partition) -> HiddenLog:
        """The log of its stages."""
        return ReplicatedStageLog(main, companion, clock=self._now_us)

    def may_have(self, incarnation: str, partition: int) -> bool:
        """Whether anything may be staged in a partition."""
        return self.known(incarnation) is not None

    def numbers(self, info: StreamInfo) -> Sequence[int]:
        """The partitions of a stream that have a companion."""
        companion = self.known(info.incarnation)
        return range(0 if companion is None else companion.settings.partitions)

    def known(self, incarnation: str) -> StreamInfo | None:
        """The companion of a stream, by the catalog; None: nothing was ever staged for it."""
        return self._service.catalog.streams.get(stages_of(incarnation))

    def of(self, main: Partition, *, wait_s: float = 0.0) -> Partition:
        """The companion of a partition that is led here, once it is led here, too.

        Raises:
            NotReady: it is not, in time.
        """
        until_s = self._waits.now_s() + wait_s
        while True:
            found, why = self._look(main)
            if found is not None:
                return found
            if self._waits.now_s() >= until_s or not main.leads or main.removed:
                raise NotReady(f"{main}: its stages are not led here yet: {why}")
            self._waits.pause(LOOK_S)

    def _look(self, main: Partition) -> tuple[Partition | None, str]:
        catalog, at = self._service.catalog, (main.incarnation, main.partition)
        state = catalog.cluster.partitions.get(at)
        if state is None or state.leader != self._me:
            return None, "nor is the partition"
        info = self.known(main.incarnation)
        if info is None or main.partition >= info.settings.partitions:
            self._once(at, self._make, catalog, main, state)
            return None, "they are being made"
        beside = info.incarnation, main.partition
        companion = catalog.cluster.partitions.get(beside)
        if companion is None or not companion.has_led:
            return None, "nobody has led them yet"
        if companion.leader == self._me:
            found = self._find(beside)
            return (found, "") if found is not None and found.serves else (None, "this broker has just been elected")
        replicas = wanted(self._me, state, companion, [b for b, one in list(catalog.brokers.items()) if one.is_live])
        if companion.target is None or companion.target != replicas:
            self._once(at, self._fetch, beside, replicas, companion)
        return None, f"{companion.leader or 'nobody'} leads them"

    def _once(self, at: Place, act: Callable[..., None], *args: Any) -> None:
        """B3."""
        with self._lock:
            if self._asked_s.get(at, 0.0) > self._waits.now_s():
                return
            self._asked_s[at] = float("inf")
        try:
            act(*args)
        except LiftlogError as error:
            log.info("sink.companion_not_led partition=%s/%d error=%s", *at, error)
        finally:
            with self._lock:
                self._asked_s[at] = self._waits.now_s() + PAUSE_S

    def _make(self, catalog: Catalog, main: Partition, state: PartitionState) -> None:
        info, name = catalog.streams.get(main.stream), stages_of(main.incarnation)
        if info is None or info.incarnation != main.incarnation:
            return
        count = info.settings.partitions
        if name in catalog.streams:
            self._execute("add_partitions", name=name, partitions=count)
            return
        live, encryption = len(catalog.cluster.who().registrations), encryption_of(info.settings)
        self._execute(
            "create_stream",
            name=name,
            incarnation=self._new_id(),
            created_us=self._now_us(),
            settings={**SETTINGS, "partitions": count, **encryption},
            internal=True,
            replication_factor=max(len(state.replicas), min(REPLICAS, live)),
        )
        log.info("sink.companion_made stream=%s partitions=%d", main.stream, count)

    def _fetch(self, beside: Place, replicas: tuple[str, ...], companion: PartitionState) -> None:
        if companion.replicas != replicas:
            self._execute("reassign", stream=beside[0], partition=beside[1], replicas=list(replicas))
        if self._me in companion.isr:
            self._execute("elect_preferred", partitions={beside[0]: [beside[1]]})

    def _execute(self, kind: str, **values: Any) -> None:
        self._service.execute({"v": COMMAND_VERSION, "kind": kind, **values})


def encryption_of(settings: StreamSettings) -> dict[str, Any]:
    """What is staged for a stream is encrypted as the stream is."""
    return {} if settings.encryption is None else {"encryption": settings.encryption}


def wanted(me: str, main: PartitionState, companion: PartitionState, live: Collection[str]) -> tuple[str, ...]:
    """The replicas of a companion, this broker first, so that it is elected.

    A member goes on as it is (B2), in the order of the partition's replicas. If this broker is none, it takes the place
    of one that is not in sync, or of the last one. A move that is under way goes on, unless it waits for a dead broker.
    """
    target = companion.target or ()
    coming = [broker for broker in target if broker in companion.isr or broker in live]
    if me in companion.replicas and len(coming) == len(target):
        order = target or (me, *main.replicas, *companion.replicas)
        return tuple(broker for broker in dict.fromkeys(order) if broker in companion.replicas)
    members = companion.isr or companion.last_isr
    order = (me, *coming, *(broker for broker in main.replicas if broker in members), *members)
    return tuple(dict.fromkeys(order))[: max(2, len(target or companion.replicas))]
