"""Sinks as the HTTP API sees them: coroutines in front of calls that block, and the stages of every partition.

Uploads and commits run in threads of their own, so that neither an append nor a fetch waits for them; what one
commit does in several partitions at once runs in further ones, or commits could wait for each other's threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar, Unpack

from broker.api.errors import InvalidRequest, LiftlogError
from broker.runtime.partitions.leader import Partition
from broker.runtime.sinks.coordinator import Sinks, renew_ms
from broker.runtime.sinks.room import put_with_room
from broker.runtime.sinks.rounds import SinkRounds
from broker.runtime.sinks.stage_log import StageLog, is_staged
from broker.runtime.sinks.stages import StageLimits, StageStore
from broker.serving.threads import Threads
from broker.sinks.notes import StagePart
from broker.storage.disk import Disk, disk_errors
from broker.storage.rows import Measured

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CALL_THREADS = 8
PARTITION_THREADS = 4


def _now_us() -> int:
    return time.time_ns() // 1000


def _close(store: StageStore) -> None:
    try:
        store.close()
    except (LiftlogError, OSError) as error:  # its files are closed, without a clean mark
        log.warning("partition.close_failed partition=%s error=%s", store, error)


class SinkService:
    """See the module. The calls are those of `Sinks`, and raise what those raise.

    Args:
        commits: The partition of `__commits`.
        find: The partition of a stream; raises UnknownStream, UnknownPartition, or why the stream is offline.
        incarnation_of: That of a stream by the catalog; None: there is no such stream.
        boot_id: As `PartitionLog.open` takes it.
        clock: Microseconds since 1970 UTC; tells what is old.
    """

    def __init__(
        self,
        disk: Disk,
        commits: Partition,
        find: Callable[[str, int], Partition],
        incarnation_of: Callable[[str], str | None],
        *,
        limits: StageLimits | None = None,
        boot_id: str = "",
        clock: Callable[[], int] = _now_us,
    ) -> None:
        self._disk = disk
        self._find = find
        self._incarnation_of = incarnation_of
        self._limits = limits or StageLimits()
        self._boot_id = boot_id
        self._clock = clock
        self._stores: dict[Partition, StageStore] = {}
        self._lock = threading.Lock()
        self._calls = Threads(CALL_THREADS, name="sink")
        self._spread = Threads(PARTITION_THREADS, name="sink-partition")
        self.sinks = Sinks(commits, self, clock=clock, executor=self._spread, limits=self._limits)
        self.rounds = SinkRounds(self.sinks)
        self.sweep = self.rounds.sweep
        self.open, self.states = self._in_thread(self.sinks.open), self._in_thread(self.sinks.states)
        self.describe, self.stage = self._in_thread(self.sinks.describe), self._in_thread(self._stage)
        self.stage_bundle = self._in_thread(self._stage_bundle)
        self.commit, self.abort = self._in_thread(self.sinks.commit), self._in_thread(self.sinks.abort)
        self.reset, self.adopt = self._in_thread(self.sinks.reset), self._in_thread(self.sinks.adopt)
        self.delete, self.check = self._in_thread(self.sinks.delete), self._in_thread(self.sinks.check_stage)
        self.end = self._in_thread(self.sinks.end)
        self.renew, self.described = self._in_thread(self.sinks.renew), self._in_thread(self.sinks.described)
        self.silences = self._in_thread(self.sinks.silences)

    # --- life -----------------------------------------------------------------------------------------------

    def start(self, partitions: Iterable[Partition]) -> None:
        """Find what is staged, before anything is let go; finish in the background what was decided."""
        self.take_in(partitions)
        self._calls.submit(self.rounds.recover)

    def take_in(self, partitions: Iterable[Partition]) -> None:
        """Find what is staged in partitions that were just opened, before anything is let go.

        Where nothing ever was, nothing is made before the first stage comes: most partitions have none.
        """
        taken = list(partitions)
        try:
            for partition in taken:
                with disk_errors(f"looking for stages of {partition}"):
                    if is_staged(self._disk, partition):
                        self._store_of(partition)
        except BaseException:
            self.forget(taken)  # they are closed: a hidden log must not be open twice
            raise

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Their stream was deleted."""
        for partition in partitions:
            with self._lock:
                store = self._stores.pop(partition, None)
            if store is not None:
                _close(store)  # however the disk is: the logs beside it have to be closed, too

    def close(self) -> None:
        """End what is under way, and close the hidden logs."""
        self._calls.shutdown(wait=True)
        self._spread.shutdown(wait=True)
        for store in self.stores():
            _close(store)

    # --- the stages of every partition ----------------------------------------------------------------------

    def store(self, stream: str, partition: int) -> StageStore:
        """Raises UnknownStream, UnknownPartition, or why the stream is offline."""
        return self._store_of(self._find(stream, partition))

    def stores(self) -> Sequence[StageStore]:
        """Those with something staged."""
        with self._lock:
            return [store for store in self._stores.values() if store.exists]

    def is_gone(self, stream: str, incarnation: str) -> bool:
        """Whether the catalog knows no such incarnation of the stream any more."""
        return self._incarnation_of(stream) != incarnation

    def staged_in(self, partition: Partition) -> StageStore | None:
        """The stages of a partition; None where nothing was ever staged."""
        with self._lock:
            store = self._stores.get(partition)
        return store if store is not None and store.exists else None

    def _store_of(self, partition: Partition) -> StageStore:
        with self._lock:
            partition.check_open(decided=True)  # `forget` may have been here: nobody would close what is made now
            if partition not in self._stores:
                with disk_errors(f"looking for stages of {partition}"):
                    hidden = StageLog(self._disk, partition, boot_id=self._boot_id, clock=self._clock)
                    store = StageStore(partition, hidden, self._limits, clock=self._clock)
                    partition.replica.floor = store.floor
                    self._stores[partition] = store
            return self._stores[partition]

    # --- calls ----------------------------------------------------------------------------------------------

    async def ask(self, stream: str, partition: int, incarnation: str, act: str, what: Mapping[str, Any]) -> Any:
        """As `SinksView.ask`."""
        raise InvalidRequest("this broker is alone: no other broker asks it")

    def _stage(self, stream: str, partition: int, batches: Sequence[Measured], **part: Unpack[StagePart]) -> bool:
        """Store one part of a stage; false: it was there. Durable when it returns. Raises as `StageStore.store`."""
        check = partial(self.sinks.check_stage, part["sink"], part["epoch"])
        store = self.store(stream, partition)
        is_new, generation = put_with_room(store, self.sinks.silences, batches, check, **part)
        store.make_durable(generation)
        return is_new

    def _stage_bundle(self, stream: str, parts: Sequence[tuple[int, Sequence[Measured], StagePart]]) -> Sequence[int]:
        """As `SinksView.stage_bundle`: this broker leads all, and the commit makes them durable (`stages.G7`)."""
        for partition, batches, part in parts:
            check = partial(self.sinks.check_stage, part["sink"], part["epoch"])
            put_with_room(self.store(stream, partition), self.sinks.silences, batches, check, **part)
        return ()

    @property
    def renew_ms(self) -> int:
        """As `SinksView.renew_ms`."""
        return renew_ms(self._limits)

    def _in_thread(self, act: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
        """The same as a coroutine, which runs it in a thread for such calls."""

        async def call(*args: P.args, **options: P.kwargs) -> T:
            return await asyncio.get_running_loop().run_in_executor(self._calls, partial(act, *args, **options))

        return call
