"""The scrub of all partitions: one thread that reads everything again, slowly, and checks it.

    pass:  a/0 ► a/1 ► b/0 ► ...   in the order of their names, from where the last run of the broker stopped
           | wait interval_ms | next pass

It reads in small pieces, paced to `scrub.bytes_per_s`, and leaves the page cache as it was. The thread has the priority
of all others (docs/adr/0021-no-niceness.md). Nothing here is waited for. The position is kept in the file `scrub` of
the data folder; without it a pass begins anew, no more. After a partition the scrub reads the stages that sinks have
in it, from the beginning: they are seldom large, and seldom there for long.

An error of the disk is tried `READ_TRIES` times, `RETRY_S` apart, before what cannot be read counts as lost; where that
is not possible either, the partition is passed over until the next pass, and a line says so.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final, Protocol

from broker.api.errors import LiftlogError
from broker.api.validation import build
from broker.background.compactor import Stopped
from broker.common.metrics import Sample
from broker.config.configuration import Config
from broker.node.partitions.partition import Partition
from broker.storage.disk import Disk
from broker.storage.inspect.scrub import Piece
from broker.storage.segments.checkpoint import open_json, seal_json

log = logging.getLogger(__name__)

FILE: Final = "scrub"
READ_TRIES: Final = 3
RETRY_S: Final = 1.0
REMEMBER_S: Final = 10.0
LOOK_S: Final = 60.0
"""How often it is asked whether the next pass is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPosition:
    """Where a pass is: all partitions before this one, and what is below the offset in it, were checked.

    `partition` is -1 between passes. `finished_us`: when the last whole pass ended; 0: none did.
    """

    stream: str = ""
    incarnation: str = ""
    partition: int = -1
    offset: int = 0
    finished_us: int = 0

    @property
    def place(self) -> tuple[str, str, int]:
        """The key by which partitions are ordered."""
        return self.stream, self.incarnation, self.partition


def load_position(disk: Disk, path: str) -> ScrubPosition:
    """Read the file; the beginning where it is missing, damaged or of a later release."""
    beginning = ScrubPosition()
    with suppress(OSError, LiftlogError, ValueError):
        values = open_json(disk.read_file(path), where=path)
        return beginning if values is None else build(ScrubPosition, values)
    return beginning


class Scrubbed(Protocol):
    """Something to read piece by piece: a partition, or the stages in one. Log lines have its name."""

    @property
    def is_over(self) -> bool:
        """Whether its stream was deleted, or this broker keeps it no more."""

    def scrub(self, offset: int, *, give_up: bool = False) -> Piece | None:
        """As `storage.scrub.scrub`."""


class Scrubber:
    """Owns the scrub thread; with `scrub.interval_ms = 0` there is none.

    Args:
        partitions: All of them, asked for at the beginning of each pass.
        stages: The stages in a partition; None: none.
    """

    def __init__(
        self,
        config: Config,
        disk: Disk,
        partitions: Callable[[], Iterable[Partition]],
        *,
        stages: Callable[[Partition], Scrubbed | None] = lambda _: None,
    ) -> None:
        self._interval_s = config.scrub.interval_ms / 1000
        self._bytes_per_s = config.scrub.bytes_per_s
        self._disk = disk
        self._path = f"{os.path.abspath(config.data_dir)}/{FILE}"
        self._partitions = partitions
        self._stages = stages
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)
        self._position = ScrubPosition()
        self._remembered_s = 0.0
        self._progress = (0, 0)  # partitions checked in this pass, and of how many
        self._counts = {"passes": 0, "read_bytes": 0, "batches": 0, "lost_ranges": 0, "failed_partitions": 0}

    def start(self) -> None:
        """Start the thread, if it is wanted."""
        if self._interval_s:
            self._thread.start()

    def stop(self) -> None:
        """Stop at the next piece."""
        self._stop.set()
        if self._interval_s:
            self._thread.join()

    def samples(self) -> Iterator[Sample]:
        """For /metrics."""
        for name, value in self._counts.items():
            yield f"liftlog_scrub_{name}_total", f"Scrub: {name.replace('_', ' ')}", (), (), value
        done, of = self._progress
        yield "liftlog_scrub_partitions_done", "Partitions that the present pass has checked", (), (), done
        yield "liftlog_scrub_partitions", "Partitions of the present pass; 0 between passes", (), (), of
        finished_s = self._position.finished_us / 1e6
        yield "liftlog_scrub_finished_seconds", "When the last whole pass ended, since 1970 UTC", (), (), finished_s

    def _run(self) -> None:
        self._position = load_position(self._disk, self._path)
        self._remembered_s = time.monotonic()
        with suppress(Stopped):
            while not self._stop.wait(min(LOOK_S, self._interval_s)):
                since_s = time.time() - self._position.finished_us / 1e6
                if self._position.partition >= 0 or not 0 <= since_s < self._interval_s:  # below 0: a clock was ahead
                    self._pass()

    def _pass(self) -> None:
        begin, begun, bytes_before = self._position, time.monotonic(), self._counts["read_bytes"]
        order = sorted(self._partitions(), key=_place)
        left = [partition for partition in order if _place(partition) >= begin.place]
        for number, partition in enumerate(left, len(order) - len(left)):
            self._progress = (number, len(order))
            self._guarded(partition, begin.offset if _place(partition) == begin.place else 0)
        self._progress = (0, 0)
        self._remember(ScrubPosition(finished_us=time.time_ns() // 1000))
        self._counts["passes"] += 1
        log.info(
            "scrub.done partitions=%d read_bytes=%d lost_ranges=%d ms=%d",
            len(left),
            self._counts["read_bytes"] - bytes_before,
            sum(len(partition.log.state.lost_ranges) for partition in order),
            (time.monotonic() - begun) * 1000,
        )

    def _guarded(self, partition: Partition, offset: int) -> None:
        try:
            self._scrub(partition, offset)
        except Stopped:
            if self._stop.is_set():
                self._remember(self._position)
                raise
        except (LiftlogError, OSError) as error:
            if not partition.replica.is_over:
                self._counts["failed_partitions"] += 1
                log.error("scrub.failed partition=%s offset=%d error=%s", partition, self._position.offset, error)
        except Exception:
            self._counts["failed_partitions"] += 1
            log.exception("scrub.bug partition=%s", partition)

    def _scrub(self, partition: Partition, offset: int) -> None:
        stream, incarnation, number = _place(partition)
        self._position = replace(
            self._position, stream=stream, incarnation=incarnation, partition=number, offset=offset
        )
        for checked_to in self._checked(partition.replica, offset):
            self._position = replace(self._position, offset=checked_to)
            if time.monotonic() - self._remembered_s >= REMEMBER_S:
                self._remember(self._position)
        stages = self._stages(partition)
        if stages is not None:
            for _ in self._checked(stages, 0):
                pass

    def _checked(self, what: Scrubbed, offset: int) -> Iterator[int]:
        """Check all from `offset` on, piece by piece; where each ends."""
        while (piece := self._piece(what, offset)) is not None:
            self._counts["read_bytes"] += piece.bytes
            self._counts["batches"] += piece.batches
            self._counts["lost_ranges"] += len(piece.lost)
            offset = piece.next_offset
            yield offset
            self._pause(what, piece.bytes / self._bytes_per_s)

    def _piece(self, what: Scrubbed, offset: int) -> Piece | None:
        for _ in range(READ_TRIES):
            try:
                return what.scrub(offset)
            except (LiftlogError, OSError) as error:
                if not what.is_over:
                    log.warning("scrub.retry partition=%s offset=%d error=%s", what, offset, error)
                self._pause(what, RETRY_S)
        return what.scrub(offset, give_up=True)

    def _pause(self, what: Scrubbed, seconds: float) -> None:
        if self._stop.wait(seconds) or what.is_over:
            raise Stopped

    def _remember(self, position: ScrubPosition) -> None:
        self._position = position
        self._remembered_s = time.monotonic()
        try:
            self._disk.replace_file(self._path, seal_json(asdict(position)))
        except OSError as error:
            log.warning("scrub.position_not_saved path=%s error=%s", self._path, error)


def _place(partition: Partition) -> tuple[str, str, int]:
    return partition.stream, partition.incarnation, partition.partition
