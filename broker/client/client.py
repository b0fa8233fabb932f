"""The client: one object for a cluster, found by `connect`.

    with connect("localhost:9293") as client:
        client.create_stream("orders", subject="orders.>", partitions=4)
        table = client.read("orders", start="earliest").to_table()
        client.commit("my-job", {"orders": {0: 42}})

Every call is tried again after what is `Retryable`, with growing pauses, until `deadline_s` is over; it
then raises DeadlineExceeded, caused by the last error. What the broker refuses (`InvalidRequest`) is
raised at once, as the type that the broker named. All calls may come from several threads, and from
a process forked after `connect`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import pyarrow as pa

from broker.api.errors import InvalidRequest, LiftlogError, OffsetOutOfRange, UnknownPartition, UnknownStream
from broker.client.address import Addresses
from broker.client.answers import (
    Appended,
    ClusterDescription,
    ConsumerLag,
    Readiness,
    Resolved,
    StreamDescription,
    Watch,
    understand,
)
from broker.client.append import TIMEOUT_S as APPEND_TIMEOUT_S
from broker.client.append import Appender, Stamp
from broker.client.brokers import Brokers
from broker.client.calls import Calls, path
from broker.client.positions import At, Position, at_json
from broker.client.producer import Producer
from broker.client.reader import RecordReader, Span, reader_schema
from broker.client.sequences import register
from broker.client.sinks import Sink, SinkDescription

TIMEOUT_S: Final = 10.0
DEADLINE_S: Final = 30.0
POSITIONS_PER_CALL: Final = 10_000

Start = At | Mapping[int, At]
End = Literal["latest"] | int | datetime | Mapping[int, At] | None


def connect(
    addresses: Addresses = "localhost", *, timeout_s: float = TIMEOUT_S, deadline_s: float = DEADLINE_S
) -> Client:
    """A client for the cluster that these brokers belong to. Opens no connection yet.

    Args:
        addresses: `host`, `host:port` or `http://host:port`, port 9293 by default, IPv6 in brackets; several as a list
            or separated by commas. A broker that cannot be reached is passed over.
        timeout_s: How long a broker may be silent, in seconds.
        deadline_s: How long failures may follow each other before a call gives up, in seconds; 0: no second try.
    Raises:
        InvalidRequest: an address is malformed.
    """
    return Client(Brokers(addresses), timeout_s=timeout_s, deadline_s=deadline_s)


class Client:
    """Streams, records, consumers. A context manager; thread-safe and fork-safe. Made by `connect`."""

    def __init__(self, brokers: Brokers, *, timeout_s: float, deadline_s: float) -> None:
        self.brokers = brokers
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self._calls = Calls(brokers, timeout_s=timeout_s, deadline_s=deadline_s)
        self._appender = Appender(brokers, timeout_s=max(timeout_s, APPEND_TIMEOUT_S), deadline_s=deadline_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<liftlog client of {self.brokers}>"

    def close(self) -> None:
        """Close idle connections. Idempotent."""
        self.brokers.pool.close()

    # streams

    def create_stream(self, name: str, **settings: Any) -> StreamDescription:
        """Create a stream; one that exists with the same settings is as good as created.

        Args:
            settings: As `broker.api.stream.StreamSettings`; what is not given has the broker's default.
        Raises:
            StreamExists: with other settings; field `differences`: {key: [existing, asked]}.
            InvalidName, InvalidSetting, UnknownSetting, InvalidSubject: as they say.
        """
        return self._stream(self._calls.json("POST", path("streams"), {"name": name, **settings}))

    def describe(self, stream: str) -> StreamDescription:
        """A stream with its partitions. Raises UnknownStream."""
        return self._stream(self._calls.json("GET", path("streams", stream)))

    def streams(self, *, internal: bool = False) -> list[StreamDescription]:
        """All streams by name; `internal`: with the broker's own, whose names begin with `__`."""
        value = self._calls.json("GET", path("streams"), query={"internal": "true" if internal else "false"})
        return understand(lambda v: [self._stream(stream) for stream in v["streams"]], value, where="listing streams")

    def alter(self, stream: str, **settings: Any) -> StreamDescription:
        """Change settings of a stream.

        Raises:
            UnknownStream: there is none.
            InvalidSetting: out of its limits, or one that cannot be altered.
        """
        return self._stream(self._calls.json("PATCH", path("streams", stream), settings))

    def delete_stream(self, stream: str, *, missing_ok: bool = False) -> None:
        """Delete a stream and its records. Raises UnknownStream unless `missing_ok`."""
        try:
            self._calls.json("DELETE", path("streams", stream), done_if=UnknownStream)
        except UnknownStream:
            if not missing_ok:
                raise

    def pause(self, stream: str) -> StreamDescription:
        """Capture nothing and take no appends until `resume`; reads go on.

        What NATS has delivered by then is stored first; publishers that wait for acks see that nobody answers.

        Raises:
            UnknownStream: there is none.
            ReadOnly: it is the broker's own.
        """
        return self._stream(self._calls.json("POST", path("streams", stream, "pause")))

    def resume(self, stream: str) -> StreamDescription:
        """End what `pause` began. Raises as `pause`."""
        return self._stream(self._calls.json("POST", path("streams", stream, "resume")))

    def set_read_only(self, stream: str, read_only: bool = True) -> StreamDescription:
        """Answer every record with an error (True), or take records again (False). Raises as `pause`."""
        return self._stream(self._calls.json("POST", path("streams", stream, "read-only"), {"read_only": read_only}))

    def trim(self, stream: str, *, before: At, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Let go of the records before a position, for good.

        Args:
            before: The first to keep: an offset, a datetime with time zone (the first record that is not older; if
                there is none, all go), or `"latest"`: all go. What is gone already changes nothing.
            partitions: Their numbers; None: all of the stream.
        Returns:
            Per partition, the log start offset then.
        Raises:
            OffsetOutOfRange: `before` is above a high watermark; nothing was trimmed.
            UnknownStream, UnknownPartition: not there.
            ReadOnly: it is the broker's own.
        """
        if before == "earliest":
            raise InvalidRequest("before='earliest': nothing lies before it; give an offset, a datetime or 'latest'")
        body: dict[str, Any] = {"before": at_json(before)}
        if partitions is not None:
            body["partitions"] = list(partitions)
        value = self._calls.json("POST", path("streams", stream, "trim"), body)
        return understand(
            lambda v: {int(p["partition"]): int(p["log_start_offset"]) for p in v["partitions"]},
            value,
            where=f"trimming {stream}",
        )

    def add_partitions(self, stream: str, partitions: int) -> StreamDescription:
        """Raise the number of partitions of a stream.

        Records stay where they are; of a keyed stream, keys may go to other partitions from now on: see `warnings`.
        Readers that follow all partitions take in the new ones; producers that are open keep to those that they know.

        Args:
            partitions: How many in all, not fewer than now.
        Raises:
            InvalidSetting: fewer than now, or too many.
            UnknownStream: there is none.
            ReadOnly: it is the broker's own.
        """
        return self._stream(self._calls.json("POST", path("streams", stream, "partitions"), {"partitions": partitions}))

    # records

    def read(
        self,
        stream: str,
        *,
        partitions: Iterable[int] | None = None,
        start: Start = "earliest",
        end: End = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        max_bytes: int | None = None,
    ) -> RecordReader:
        """Read committed records.

        Order: within a partition by offset. Several partitions: one after the other, by number; with `follow` in
        turns, as they grow.

        Args:
            partitions: Their numbers; None: all.
            start: `"earliest"`, `"latest"`, an offset, a datetime with time zone (the first record that is not older;
                if there is none, the high watermark), or one of these per partition (others: earliest).
            end: Exclusive. None or `"latest"`: the high watermark of now. Otherwise as `start` (others: latest).
            columns: Which ones, in this order; `partition` may be among them. None: all of the record schema, and
                `partition` (int32) behind them if the stream has several partitions.
            follow: Go on for ever, waiting for what is committed next, until the reader is closed. With
                `partitions=None` those that are added meanwhile are read, too, from their first record; the
                columns stay what they are.
            max_bytes: About how many bytes to ask for at a time.
        Returns:
            An iterator of `pyarrow.RecordBatch`, with `to_table()`, `to_pandas()`, `to_polars()`.
        Raises:
            UnknownStream, UnknownPartition: not there.
            OffsetOutOfRange: `start` or `end` is not committed or gone; fields `log_start_offset`, `high_watermark`.
            InvalidRequest: `end` before `start`, `end` with `follow`, a column that does not exist.
        """
        if follow and end is not None:
            raise InvalidRequest("follow=True goes on for ever: give no end")
        if max_bytes is not None and max_bytes < 1:
            raise InvalidRequest(f"max_bytes={max_bytes}: must be 1 or more")
        reader_schema(columns, False)
        description = self.describe(stream)
        count = len(description.partitions)
        numbers = list(range(count)) if partitions is None else sorted(set(partitions))
        if not numbers:
            raise InvalidRequest("partitions=[]: name at least one, or None for all")
        for number in numbers:
            if not 0 <= number < count:
                raise UnknownPartition(f"stream {stream!r} has no partition {number}, only {count}", partitions=count)
        starts = self._spread(start, numbers, "earliest")
        spans = self._spans(description, starts, self._spread(end, numbers, "latest"))
        return RecordReader(
            self._calls,
            stream,
            spans,
            incarnation=description.incarnation,
            columns=columns,
            with_partition=count > 1,
            follow=follow,
            max_bytes=max_bytes,
            take_added=partitions is None,
        )

    def append(
        self,
        stream: str,
        partition: int,
        records: pa.RecordBatch | pa.Table,
        *,
        acks: str | None = None,
        at_least_once: bool = False,
        stamp: Stamp | None = None,
    ) -> Appended:
        """Append records to one partition in one request, all or none of them. Details: `Appender.append`.

        The broker may be silent for 30 s at least: the answer waits for an fsync.
        """
        return self._appender.append(stream, partition, records, acks=acks, at_least_once=at_least_once, stamp=stamp)

    def register_producer(self, name: str | None = None) -> tuple[int, int]:
        """A producer id and its epoch, for stamps of one's own (`Producer` gets its by itself).

        Args:
            name: Gives the same id each time, and the next epoch, which fences the one before. None: a new id.
        Raises:
            InvalidName: it cannot be one.
        """
        return register(self._calls, name)

    def producer(self, stream: str, **options: Any) -> Producer:
        """A batching producer; `options` as for `Producer`. Raises UnknownStream."""
        return Producer(self.brokers, self.describe(stream), **{"deadline_s": self.deadline_s, **options})

    # positions

    def resolve(self, positions: Iterable[Position]) -> list[Resolved]:
        """Find offsets, heads and distances of many positions at once, in their order.

        A position that cannot be resolved has an `error`; the others are not affected.

        Raises:
            InvalidRequest: something is no position.
        """
        asked = [position.as_json() for position in positions]
        found: list[Resolved] = []
        for at in range(0, len(asked), POSITIONS_PER_CALL):
            body = {"positions": asked[at : at + POSITIONS_PER_CALL]}
            value = self._calls.json("POST", path("offsets", "resolve"), body)
            found += understand(
                lambda v: [Resolved.of(position) for position in v["positions"]], value, where="resolving positions"
            )
        return found

    def watch(self, since: int = 0, streams: str | Iterable[str] | None = None, *, max_wait_s: float = 20.0) -> Watch:
        """Wait until a high watermark, a log start or the set of streams changes; answer with all heads.

        Args:
            since: `version` of the watch before; 0 answers at once.
            streams: Names, `*` for any characters; None: all.
            max_wait_s: The answer comes then, changed or not.
        """
        names = streams if isinstance(streams, str) or streams is None else ",".join(streams)
        query = {"since": since, "max_wait_ms": int(max_wait_s * 1000), "streams": names}
        value = self._calls.json("GET", path("watch"), query=query, wait_s=max_wait_s)
        return understand(Watch.of, value, where="watching")

    # consumers

    def consumers(self) -> list[ConsumerLag]:
        """All consumers that have committed offsets, with their lag."""
        value = self._calls.json("GET", path("consumers"))
        return understand(lambda v: [ConsumerLag.of(c) for c in v["consumers"]], value, where="listing consumers")

    def consumer(self, consumer: str) -> ConsumerLag:
        """One consumer. Raises UnknownConsumer."""
        return self._consumer(self._calls.json("GET", path("consumers", consumer)))

    def lag(self, consumer: str) -> int:
        """How many committed records the consumer has not read yet. Raises UnknownConsumer."""
        return self.consumer(consumer).lag

    def commit(
        self,
        consumer: str,
        offsets: Mapping[str, Mapping[int, int]] | Iterable[Mapping[str, Any]],
        *,
        metadata: str | None = None,
    ) -> int:
        """Store how far a consumer is: the next offset that it will read, per stream and partition.

        Args:
            offsets: `{"orders": reader.positions}`, or objects of the HTTP API with the keys stream, partition, offset
                and maybe leader_epoch, incarnation, metadata.
            metadata: Any text, kept with each offset of the first form.
        Returns:
            How many were stored; they are durable.
        """
        if isinstance(offsets, Mapping):
            more = {} if metadata is None else {"metadata": metadata}
            items = [
                {"stream": stream, "partition": partition, "offset": offset, **more}
                for stream, by_partition in offsets.items()
                for partition, offset in by_partition.items()
            ]
        else:
            items = [dict(item) for item in offsets]
        value = self._calls.json("POST", path("consumers", consumer, "offsets"), {"offsets": items})
        return understand(lambda v: int(v["committed"]), value, where=f"committing for {consumer}")

    def reset(self, consumer: str, stream: str, to: At, *, partitions: Iterable[int] | None = None) -> ConsumerLag:
        """Move a consumer's committed offsets.

        Args:
            to: `"earliest"`, `"latest"`, an offset, or a datetime with time zone.
            partitions: Their numbers; None: all of the stream.
        """
        body: dict[str, Any] = {"stream": stream, "to": at_json(to)}
        if partitions is not None:
            body["partitions"] = list(partitions)
        return self._consumer(self._calls.json("POST", path("consumers", consumer, "reset"), body))

    def delete_consumer(self, consumer: str) -> None:
        """Forget all committed offsets of a consumer. Raises UnknownConsumer."""
        self._calls.json("DELETE", path("consumers", consumer))

    # sinks

    def sink(self, sink: str, *, epoch: int | None = None) -> Sink:
        """An exactly-once sink; `open` it, or give the epoch of the one who did. Asks no broker yet."""
        return Sink(self._calls, sink, epoch=epoch)

    def sinks(self) -> list[SinkDescription]:
        """All sinks by name."""
        value = self._calls.json("GET", path("sinks"))
        return understand(lambda v: [SinkDescription.of(s) for s in v["sinks"]], value, where="listing sinks")

    # the cluster

    def cluster(self) -> ClusterDescription:
        """The cluster and its brokers."""
        return understand(
            ClusterDescription.of, self._calls.json("GET", path("cluster")), where="describing the cluster"
        )

    def ready(self) -> Readiness:
        """Whether a broker is ready to serve, asked once.

        Raises:
            Unavailable: nobody answers.
        """
        return self._calls.ready()

    def _stream(self, value: Any) -> StreamDescription:
        found = understand(StreamDescription.of, value, where="describing a stream")
        for partition in found.partitions:
            self.brokers.note_leader((found.name, partition.partition), partition.leader_http)
        return found

    def _consumer(self, value: Any) -> ConsumerLag:
        return understand(ConsumerLag.of, value, where="describing a consumer")

    @staticmethod
    def _spread(at: Start | End, numbers: Sequence[int], default: At) -> dict[int, At]:
        """One position for each partition."""
        if isinstance(at, Mapping):
            if unknown := sorted(at.keys() - set(numbers)):
                raise InvalidRequest(f"a position is given for partition {unknown[0]}, which is not read")
            return {number: at.get(number, default) for number in numbers}
        return dict.fromkeys(numbers, default if at is None else at)

    def _spans(
        self, description: StreamDescription, starts: Mapping[int, At], ends: Mapping[int, At]
    ) -> dict[int, Span]:
        """Resolve both ends of every partition in one call."""
        name, incarnation = description.name, description.incarnation
        found = self.resolve(
            [Position(name, partition, at, incarnation) for ats in (starts, ends) for partition, at in ats.items()]
        )
        for resolved in found:
            if resolved.error is not None:
                raise resolved.error
        spans = {}
        for partition, first, last in zip(starts, found, found[len(starts) :], strict=False):
            begin = _within(first, last)
            finish = _within(last, last)
            if finish < begin:
                raise InvalidRequest(
                    f"{name}/{partition}: the end, {finish}, is before the start, {begin}", start=begin, end=finish
                )
            spans[partition] = Span(start=begin, end=finish, from_earliest=starts[partition] == "earliest")
        return spans


def _within(resolved: Resolved, heads: Resolved) -> int:
    """The resolved offset; the high watermark where no record is that late."""
    low, high = heads.log_start_offset, heads.high_watermark
    if low is None or high is None:
        raise LiftlogError(f"resolving {resolved.stream}/{resolved.partition}: neither an error nor a range came back")
    if resolved.offset is None:
        return high
    if not low <= resolved.offset <= high:
        raise OffsetOutOfRange(
            f"{resolved.stream}/{resolved.partition}: offset {resolved.offset} is not within [{low}, {high}]",
            stream=resolved.stream,
            partition=resolved.partition,
            offset=resolved.offset,
            log_start_offset=low,
            high_watermark=high,
        )
    return resolved.offset
