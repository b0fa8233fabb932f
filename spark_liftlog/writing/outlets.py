"""Rows of a task on their way to brokers: collected per partition into pieces worth a request, then sent.

    Appending   each piece is an append, and can be read at once              at least once
    Staging     each piece is a part of a stage, hidden until its commit      exactly once

What is left in the end goes in bundles: one request for each stream and broker.

L1  A piece is at most `PIECE_BYTES` of columns, or one row: far below what a broker takes.
L2  A task holds back a bounded number of bytes over all partitions: `PENDING_BYTES_MAX`, and as many again in batches
    of which rows were sent.
L3  Pieces of one partition are in the order in which their rows came.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa

from broker.api.errors import LiftlogError
from broker.api.sink_answers import Stage
from broker.client.http.interrupt import Interrupt
from broker.client.sinks import BundledPart, Sink
from broker.client.writing.append import AppendCalls
from broker.client.writing.outgoing import pieces
from spark_liftlog.writing.rows import Target
from spark_liftlog.writing.run import ABORT_S

APPEND_BYTES: Final = 4 << 20
STAGE_BYTES: Final = 16 << 20
PENDING_BYTES_MAX: Final = 32 << 20
"""Held back by a task over all partitions: bounds its memory where there are many partitions."""
BUNDLED_BYTES: Final = 1 << 20
"""One part that is no larger goes in a bundle by itself: that is answered without an fsync."""
IN_FLIGHT_MAX: Final = 8
"""Parts of one task that are under way: an answer waits for an fsync, which several may share."""

Key: TypeAlias = tuple[str, int]
Bundle: TypeAlias = list[tuple[Key, list[pa.RecordBatch]]]
"""Rows of several partitions of one stream."""


class Collecting:
    """The base of both outlets: rows per partition, until they are worth a request."""

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._pending: dict[Key, list[pa.RecordBatch]] = {}
        self._bytes: dict[Key, int] = {}
        self._targets: dict[Key, Target] = {}
        self._sent_bytes = 0

    def add(self, target: Target, partition: int, rows: pa.RecordBatch) -> None:
        """Take rows of one partition, in order; send what has become enough."""
        key = (target.stream, partition)
        self._targets[key] = target
        for piece in pieces(rows, self._piece_bytes):
            waiting = self._pending.get(key)
            if waiting and (
                self._bytes[key] + piece.nbytes > self._piece_bytes or not waiting[0].schema.equals(piece.schema)
            ):
                self._send(key)
            self._pending.setdefault(key, []).append(piece)
            self._bytes[key] = self._bytes.get(key, 0) + piece.nbytes
        if sum(self._bytes.values()) > PENDING_BYTES_MAX:
            for largest in sorted(self._bytes, key=lambda key: -self._bytes[key]):
                self._send(largest)
                if sum(self._bytes.values()) <= PENDING_BYTES_MAX // 2:
                    break

    def _bundles(self, keys: Collection[Key], asked_first: Callable[[str, int], object]) -> Iterator[Bundle]:
        """What waits for these partitions: that of one stream and one broker together."""
        groups: dict[tuple[str, str, pa.Schema], Bundle] = {}
        for key in sorted(keys):
            batches = self._pending.get(key) or [pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})]
            leader = str(asked_first(*key)) if len(keys) > 1 else ""
            groups.setdefault((key[0], leader, batches[0].schema), []).append((key, batches))
        for group in groups.values():
            bundle: Bundle = []
            size = 0
            for key, batches in group:
                more = self._bytes.get(key, 0)
                if bundle and size + more > self._piece_bytes:
                    yield bundle
                    bundle, size = [], 0
                bundle.append((key, batches))
                size += more
            yield bundle

    def _send(self, key: Key) -> None:
        batches = self._pending.pop(key)
        self._sent_bytes += self._bytes.pop(key)
        self._sent(key, batches)
        if self._sent_bytes > PENDING_BYTES_MAX:  # what waits may be slices of batches whose other rows are gone
            self._sent_bytes = 0
            self._pending = {key: [_copied(batches)] for key, batches in self._pending.items()}

    def _sent(self, key: Key, batches: list[pa.RecordBatch]) -> None:
        raise NotImplementedError


def _copied(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows in memory of their own."""
    one = pa.concat_batches(batches)
    return one if len(batches) > 1 else one.take(pa.array(range(one.num_rows), pa.int64()))


class Appending(Collecting):
    """Appends pieces one after the other, while the next one is collected."""

    def __init__(self, appender: AppendCalls) -> None:
        super().__init__(APPEND_BYTES)
        self._appender = appender
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="liftlog-append")  # started when needed
        self._under_way: Future[None] | None = None

    def finish(self) -> None:
        """Append what waits. Durable when it returns. Raises what the broker says; rows may have been appended then."""
        self._wait()
        for bundle in self._bundles(self._pending, self._appender.asked_first):
            self._append_bundle(bundle)  # nothing is collected meanwhile, so no thread need do it
        self._pending.clear()
        self._bytes.clear()
        self._thread.shutdown()

    def discard(self) -> None:
        """End the thread. Appended records stay. Never raises."""
        self._thread.shutdown(cancel_futures=True)

    def _sent(self, key: Key, batches: list[pa.RecordBatch]) -> None:
        self._wait()
        self._under_way = self._thread.submit(self._append, key, batches)

    def _append_bundle(self, bundle: Bundle) -> None:
        failed: Collection[int] | None = None
        if len(bundle) > 1:
            (stream, partition), _ = bundle[0]
            parts = [(key[1], sum(batch.num_rows for batch in batches)) for key, batches in bundle]
            rows = pa.concat_batches([batch for _, batches in bundle for batch in batches])
            incarnation = self._targets[stream, partition].incarnation
            failed = self._appender.append_bundle(stream, parts, rows, incarnation=incarnation)
        for key, batches in bundle:
            if failed is None or key[1] in failed:
                self._append(key, batches)

    def _append(self, key: Key, batches: list[pa.RecordBatch]) -> None:
        incarnation = self._targets[key].incarnation
        self._appender.append(key[0], key[1], batches, incarnation=incarnation, at_least_once=True)

    def _wait(self) -> None:
        """Until nothing is under way. Raises what it met."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()


@dataclass(slots=True)
class _Open:
    """A stage that is being written."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    parts: int = 0
    rows: int = 0


class Staging(Collecting):
    """Stores pieces as parts of stages, several at a time; one stage per partition, named at random.

    A task that is tried again, or run twice, makes other stages; which ones count is the driver's to say.

    Args:
        sink: Open.
        abort: Drops stages, with little patience.
    """

    def __init__(self, sink: Sink, abort: Callable[[Sequence[Stage]], None]) -> None:
        super().__init__(STAGE_BYTES)
        self._sink = sink
        self._abort = abort
        self._stages: dict[Key, _Open] = {}
        self._threads = ThreadPoolExecutor(IN_FLIGHT_MAX, thread_name_prefix="liftlog-stage")  # started when needed
        self._under_way: dict[Future[object], Interrupt] = {}

    def finish(self) -> tuple[Stage, ...]:
        """Store what waits, and end every stage. Durable with the commit, or before. Raises what the broker says."""
        bundles = list(self._bundles({*self._stages, *self._pending}, self._sink.asked_first))
        for bundle in bundles:
            key, batches = bundle[0]
            if len(bundle) > 1 or sum(batch.nbytes for batch in batches) <= BUNDLED_BYTES:
                self._submit_bundle(bundle, is_alone=len(bundles) == 1 and not self._under_way)
            else:
                self._submit(key, self._stages.setdefault(key, _Open()), batches, is_last=True)
        self._pending.clear()
        self._bytes.clear()
        self._wait(0)
        self._threads.shutdown()
        return tuple(
            Stage(stream=key[0], partition=key[1], stage=stage.name, parts=stage.parts, rows=stage.rows)
            for key, stage in sorted(self._stages.items())
        )

    def discard(self) -> None:
        """Drop what was staged, as far as brokers answer soon: what remains goes with its lease. Never raises."""
        late = wait(self._under_way, timeout=ABORT_S).not_done  # a part that arrives after the abort would stay
        for part in late:
            self._under_way[part].set()
        self._threads.shutdown()
        named = [
            Stage(stream=key[0], partition=key[1], stage=stage.name, parts=stage.parts, rows=stage.rows)
            for key, stage in sorted(self._stages.items())
        ]
        if named:
            with contextlib.suppress(LiftlogError):
                self._abort(named)

    def _sent(self, key: Key, batches: list[pa.RecordBatch]) -> None:
        self._submit(key, self._stages.setdefault(key, _Open()), batches, is_last=False)

    def _submit_bundle(self, bundle: Bundle, *, is_alone: bool) -> None:
        """Store the last parts of several stages in one request; in this thread if there is no other."""
        lasts = []
        for key, batches in bundle:
            stage, rows = self._stages.setdefault(key, _Open()), sum(batch.num_rows for batch in batches)
            part = BundledPart(partition=key[1], stage=stage.name, part=stage.parts, is_last=True, rows=rows)
            lasts.append((part, batches))
            stage.parts += 1
            stage.rows += rows
        (stream, _), _ = bundle[0]
        incarnation = self._targets[bundle[0][0]].incarnation
        if is_alone:
            self._send_bundle(stream, incarnation, lasts, Interrupt())
        else:
            self._run(lambda interrupt: self._send_bundle(stream, incarnation, lasts, interrupt))

    def _send_bundle(
        self,
        stream: str,
        incarnation: str,
        lasts: list[tuple[BundledPart, list[pa.RecordBatch]]],
        interrupt: Interrupt,
    ) -> None:
        rows = [pa.concat_batches([batch for _, batches in lasts for batch in batches])]
        parts = [part for part, _ in lasts]
        elsewhere = self._sink.send_bundle(parts, rows, stream, incarnation=incarnation, interrupt=interrupt)
        for part, batches in lasts:
            if elsewhere is None or part.partition in elsewhere:
                self._sink.send_part(
                    batches,
                    stream,
                    part.partition,
                    part.stage,
                    part.part,
                    is_last=part.is_last,
                    incarnation=incarnation,
                    interrupt=interrupt,
                )

    def _submit(self, key: Key, stage: _Open, batches: list[pa.RecordBatch], *, is_last: bool) -> None:
        name, number, incarnation = stage.name, stage.parts, self._targets[key].incarnation
        self._run(
            lambda interrupt: self._sink.send_part(
                batches, *key, name, number, is_last=is_last, incarnation=incarnation, interrupt=interrupt
            )
        )
        stage.parts += 1
        stage.rows += sum(batch.num_rows for batch in batches)

    def _run(self, send: Callable[[Interrupt], object]) -> None:
        self._wait(IN_FLIGHT_MAX - 1)
        interrupt = Interrupt()
        self._under_way[self._threads.submit(send, interrupt)] = interrupt

    def _wait(self, count: int) -> None:
        """Until at most `count` parts are under way. Raises what one of them met."""
        while len(self._under_way) > count:
            for part in wait(self._under_way, return_when=FIRST_COMPLETED).done:
                del self._under_way[part]
                part.result()
