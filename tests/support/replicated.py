"""A partition that is led here and kept by two more brokers, whose fetches a test makes up."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace

from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import PartitionState
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.replication.events import Effect, FetchArrived
from broker.replication.messages import Fetch

US = "a"
OTHERS = ("b", "c")
STATE = PartitionState(
    replicas=(US, *OTHERS),
    isr=(US, *OTHERS),
    min_insync_replicas=2,
    leader=US,
    leader_epoch=2,
    leader_incarnation=(1, 0),
    partition_epoch=1,
)


class Led:
    """Led in epoch 2 with `b` and `c` in sync.

    Attributes:
        outward: Effects for other brokers.
        has_session: Whether this broker counts one.
    """

    def __init__(self, info: StreamInfo, replica: Replica, *, pool: SyncPool, appender: Executor) -> None:
        self.outward: list[Effect] = []
        self.has_session = True
        self.state = STATE
        self.partition = Partition(
            info,
            replica,
            me=US,
            has_session=lambda: self.has_session,
            to_others=self.outward.append,
            pool=pool,
            appender=appender,
        )
        self.partition.lead(2, STATE)
        self.partition.serve(2)

    def follow(self, durable_end: int, *names: str, log_start: int = 0) -> None:
        """These followers, or both, have fsynced so far."""
        for name in names or OTHERS:
            fetch = Fetch(
                follower=name,
                incarnation=(1, 0),
                epoch=self.state.leader_epoch,
                offset=durable_end,
                last_epoch=self.state.leader_epoch,
                durable_end=durable_end,
                log_start=log_start,
            )
            self.partition.step(FetchArrived(fetch=fetch, epoch_before=self.state.leader_epoch if durable_end else -1))

    def answer_isr(self, *isr: str, request: int | None = None) -> None:
        """The catalog has another ISR."""
        self.state = replace(self.state, isr=isr, partition_epoch=self.state.partition_epoch + 1)
        self.partition.isr_answered(self.state, request)
