"""The client: one object for a cluster, found by `connect`.

    with connect("localhost:9293") as client:
        client.create_stream("orders", subject="orders.>", partitions=4)
        table = client.read("orders", start="earliest").to_table()
        client.commit("my-job", {"orders": {0: 42}})

Every call is tried again after what is `Retryable`, with growing pauses, until `deadline_s` is over; it
then raises the last error, and says how often it tried. It says at once that it tries again. A refusal of the
broker (`InvalidRequest`) is raised at once, as the type that the broker named. An error with the field `sent`
leaves open whether the call was carried out. All calls may come from several threads, and from a process
forked after `connect`. A call loads what only it needs, above all Arrow, so that a command that makes one
JSON call need not wait for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from broker.api.answers import (
    Appended,
    FenceAnswer,
    ProducerInfo,
    Producers,
    Readiness,
    Resolved,
    ResolvedPositions,
    Watch,
)
from broker.api.errors import ExpectationFailed, InvalidRequest, Retryable, UnknownProducer
from broker.api.sink_answers import SinkDescription, Sinks
from broker.client.access import AccessCalls
from broker.client.consumers import ConsumerCalls
from broker.client.groups import GroupCalls
from broker.client.http.address import Addresses
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls, path, understand
from broker.client.http.outages import Say
from broker.client.http.patience import DEADLINE_S, Patience
from broker.client.http.profiles import brokers_for, files_for
from broker.client.http.tls import TlsFiles
from broker.client.operating import ClusterCalls
from broker.client.positions import Position
from broker.client.streams import StreamCalls
from broker.client.tables import TableCalls

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from broker.client.payload.decoding import JsonPayload
    from broker.client.producer import Producer
    from broker.client.reader import RecordReader
    from broker.client.reading.ranges import End, Start
    from broker.client.sinks import Sink
    from broker.client.writing.append import AppendCalls, Stamp
    from broker.client.writing.records import Records

TIMEOUT_S: Final = 10.0
POSITIONS_PER_CALL: Final = 10_000


def connect(
    addresses: Addresses | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    deadline_s: float = DEADLINE_S,
    say: Say | None = None,
    rack: str | None = None,
    call_timeout_s: float | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    token_file: str | None = None,
    profile: str | None = None,
) -> Client:
    """A client for the cluster that these brokers belong to. Opens no connection yet.

    Args:
        addresses: `host`, `host:port` or `http://host:port`, port 9293 by default, IPv6 in brackets; several as a list
            or separated by commas. A broker that cannot be reached is passed over. None: those of the environment
            variable LIFTLOG_BROKERS, else of a profile, else localhost. `https://host:port`, all of them: over TLS,
            with these brokers and all others of the cluster.
        timeout_s: Longest silence of a broker, in seconds.
        deadline_s: If a call fails again and again for this time, in seconds, it gives up. 0: it is tried once.
        say: Is called with a line of text when calls begin to fail ("retrying for 30 s: …") and when they succeed
            again. None: the lines go to the log.
        rack: Where this client is, as brokers have it in `cluster.rack`. For `read(read_from="nearest")`.
        call_timeout_s: A call gives up after this time, in seconds, whatever happens: also while it waits for its
            first answer. If it may have been carried out, its error has the field `sent`. None: no such limit. Readers
            and producers have times of their own.
        tls_ca: Path of a PEM file with the CAs that brokers' certificates have to come from. For https addresses, as
            the next two. None: that of the environment variable LIFTLOG_TLS_CA, else the CAs of the system.
        tls_cert, tls_key: Paths of the certificate that brokers are shown, and of its key (PEM). None: those of
            LIFTLOG_TLS_CERT and LIFTLOG_TLS_KEY, else no certificate. The files are read now, once.
        token_file: Path of a file with the token by which brokers know this client. None: that of LIFTLOG_TOKEN_FILE,
            else no token. It is read again when it changes, and is sent over TLS or to this machine, and nowhere else.
        profile: Name of a profile in `~/.config/liftlog/profiles.toml`, or `PATH#NAME` of one in another file: it has
            brokers, files of TLS and a token under one name, for what is not given here. It wins over other variables;
            None: that of LIFTLOG_PROFILE, which does not. Empty: none.
    Raises:
        InvalidRequest: an address is malformed, or `call_timeout_s` is not above 0; a file of TLS cannot be used, or is
            given for addresses that are not https; a profile is not there, or wrong.
    """
    if call_timeout_s is not None and not call_timeout_s > 0:
        raise InvalidRequest(f"call_timeout_s={call_timeout_s!r}: must be above 0")
    given = brokers_for(None, profile) if addresses is None else addresses
    limit_s = math.inf if call_timeout_s is None else call_timeout_s
    files = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
    said = TlsFiles(ca=tls_ca, cert=tls_cert, key=tls_key, token=token_file, profile=profile)
    brokers = Brokers(given, say=say, tls=files_for(said))
    if not brokers.is_tls and (unused := [name for name, path in files.items() if path is not None]):
        raise InvalidRequest(f"{', '.join(unused)}: for addresses such as https://host:port, and {brokers} is not")
    return Client(brokers, timeout_s=timeout_s, deadline_s=deadline_s, rack=rack, call_timeout_s=limit_s)


class Client(StreamCalls, ConsumerCalls, GroupCalls, ClusterCalls, AccessCalls, TableCalls):
    """Streams, records, consumers, the cluster. A context manager; thread-safe and fork-safe. Made by `connect`."""

    def __init__(
        self,
        brokers: Brokers,
        *,
        timeout_s: float,
        deadline_s: float,
        rack: str | None = None,
        call_timeout_s: float = math.inf,
    ) -> None:
        self.brokers = brokers
        self.call_timeout_s = call_timeout_s
        self.rack = rack
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self._is_closed = False
        self._open_calls = Calls(brokers, timeout_s=timeout_s, deadline_s=deadline_s, call_timeout_s=call_timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<liftlog client of {self.brokers}>"

    def close(self) -> None:
        """Take no more calls, and close idle connections. Idempotent.

        Close producers, readers and sinks by themselves: closing the client does not lose what they hold.
        """
        from broker.client.renewing import end_renewing

        self._is_closed = True
        end_renewing(self.brokers)
        self.brokers.pool.close()

    @cached_property
    def _appender(self) -> AppendCalls:
        from broker.client.writing.append import TIMEOUT_S as APPEND_TIMEOUT_S
        from broker.client.writing.append import AppendCalls

        timeout_s = max(self.timeout_s, APPEND_TIMEOUT_S)
        return AppendCalls(
            self.brokers, timeout_s=timeout_s, deadline_s=self.deadline_s, call_timeout_s=self.call_timeout_s
        )

    @property
    def _calls(self) -> Calls:
        self._check_open()
        return self._open_calls

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequest("the client is closed: connect again")

    # records

    def read(
        self,
        stream: str,
        *,
        partitions: Iterable[int] | None = None,
        start: Start = "earliest",
        end: End = None,
        columns: Iterable[str] | None = None,
        follow: bool = False,
        max_bytes: int | None = None,
        read_from: Literal["leader", "nearest"] = "leader",
        subject: str | Iterable[str] | None = None,
        key: str | bytes | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        payload: Literal["json"] | None = None,
        schema: pa.Schema | None = None,
        payload_mode: str | None = None,
    ) -> RecordReader:
        """Read committed records.

        Order: within a partition by offset. Several partitions: one after the other, by number; with `follow` in
        turns, as they grow.

        Args:
            partitions: Their numbers; None: all.
            start: `"earliest"`, `"latest"`, an offset, or a datetime with time zone, which means the first record that
                is not older; if there is none, the high watermark. Or a dict with one of these for each partition;
                partitions that it does not name begin at the earliest.
            end: Exclusive. None or `"latest"`: the high watermark of now. Otherwise as `start`; partitions that a dict
                does not name end at the latest.
            columns: Names of columns, in the order wanted; `partition` is one. None: all of the record schema, and
                `partition` (int32) behind them if the stream has several partitions. Brokers leave out the others where
                that saves half of the bytes.
            follow: Wait for what is committed next, until the reader is closed. With `partitions=None` the reader
                also reads partitions that are added later, from their first record. The columns stay as they are.
            max_bytes: Approximate size of one request.
            read_from: `nearest`: from an in-sync replica in the client's rack, where the leader is not in it. It may
                have records a moment later. The leader answers where the replica cannot.
            subject: Only records whose subject matches this one, or one of these; `*` and `>` are wildcards. Brokers
                leave out the others, as for the next three, and all that are given have to fit.
            key: Only records with this key; text as UTF-8.
            since, until: Only records whose timestamp is in [since, until); datetimes with time zone.
            payload: `json`: the value is a JSON object, and is given as the columns of `schema`, then `_corrupt` (the
                bytes of a value that could not be decoded), then the other columns of the record. The rules:
                docs/reference/payloads.md.
            schema: Of the objects, with `payload`. None: the one that the stream keeps (its setting `payload_schema`),
                as it is now; the reader goes on with it if it is altered.
            payload_mode: For values that cannot be decoded. `PERMISSIVE` (None means this): columns of `schema` are
                null. `DROPMALFORMED`: no row. `FAILFAST`: InvalidRecords.
        Returns:
            An iterator of `pyarrow.RecordBatch`, with `to_table()`, `to_pandas()`, `to_polars()`.
        Raises:
            UnknownStream, UnknownPartition: not there.
            OffsetOutOfRange: `start` or `end` is not committed or gone; fields `log_start_offset`, `high_watermark`.
            InvalidRequest: `end` before `start`, `end` with `follow`, a column that does not exist, `nearest` without
                a rack, a time without time zone, a payload without any schema, or one that JSON cannot fill.
            InvalidSubject: `subject` cannot be one.
        """
        if read_from not in ("leader", "nearest"):
            raise InvalidRequest(f"read_from={read_from!r}: must be 'leader' or 'nearest'")
        if read_from == "nearest" and not self.rack:
            raise InvalidRequest("read_from='nearest': connect with rack=…, which says where this client is")
        if follow and end is not None:
            raise InvalidRequest("follow=True never ends: do not give an end")
        if max_bytes is not None and max_bytes < 1:
            raise InvalidRequest(f"max_bytes={max_bytes}: must be 1 or more")
        if isinstance(columns, str):
            raise InvalidRequest(f"columns={columns!r}: must be a list of names, such as ['offset', 'value']")
        columns = None if columns is None else list(columns)
        from broker.api.conditions import Conditions
        from broker.client.reader import RecordReader, reader_schema
        from broker.client.reading.ranges import plan_read

        if payload == "json" and schema is None:
            from broker.client.payload.kept import schema_for_reading

            schema = schema_for_reading(self.describe(stream))
        decoding = _payload(payload, schema, payload_mode)
        reader_schema(columns, False, decoding)
        wanted = Conditions.of(subject=subject, key=key, since=since, until=until)
        description = self.describe(stream)
        spans = plan_read(self._resolved, description, partitions=partitions, start=start, end=end)
        return RecordReader(
            self._calls,
            stream,
            spans,
            incarnation=description.incarnation,
            columns=columns,
            with_partition=description.partition_count > 1,
            follow=follow,
            max_bytes=max_bytes,
            take_added=partitions is None,
            rack=self.rack if read_from == "nearest" else None,
            wanted=wanted,
            payload=decoding,
        )

    def append(
        self,
        stream: str,
        partition: int,
        records: Records,
        *,
        acks: str | None = None,
        at_least_once: bool = False,
        stamp: Stamp | None = None,
        expected_offset: int | None = None,
        fence: int | None = None,
        incarnation: str | None = None,
    ) -> Appended:
        """Append records to one partition in one request, all or none of them. Details: `AppendCalls.append`.

        With `expected_offset` they are appended if the first one gets that offset; else `ExpectationFailed` says which
        it would get (`next_offset`). With `fence`, the number that `Client.fence` gave, they are appended if nobody has
        fenced the partition since; else `WriterFenced`. `incarnation`: of this incarnation of the stream.

        Records may be an Arrow table, batch or reader, a pandas or polars frame, or a list of dicts:
        `client.append("orders", 0, [{"value": b"x", "key": b"k"}])`.

        The broker may be silent for 30 s at least: the answer waits for an fsync.
        """
        self._check_open()
        return self._appender.append(
            stream,
            partition,
            records,
            acks=acks,
            incarnation=incarnation,
            at_least_once=at_least_once,
            stamp=stamp,
            expected_offset=expected_offset,
            fence=fence,
        )

    def fence(self, stream: str, partition: int, *, incarnation: str | None = None) -> FenceAnswer:
        """Fence a partition: appends with the number of a former fence are refused from now on.

        Append with `fence=` the number that this returns. All that others have stored under former fences is below its
        `next_offset`, and committed. Appends without a fence are let in.

        Raises:
            ExpectationFailed: another writer has fenced it at the same time.
        """
        target, key = path("streams", stream, "partitions", partition, "fence"), (stream, partition)
        where, query = f"fencing {stream}/{partition}", {"incarnation": incarnation}
        while True:
            value = self._calls.json("GET", target, query=query, key=key)
            after = understand(FenceAnswer, value, where=where).fence
            try:
                return understand(
                    FenceAnswer, self._calls.json("POST", target, {"after": after}, query=query, key=key), where=where
                )
            except ExpectationFailed as error:
                if not error.fields.get("sent"):  # else it may have been this client
                    raise

    def register_producer(self, name: str | None = None) -> tuple[int, int]:
        """Register a producer: its id and epoch, for stamps of your own. (`Producer` registers itself.)

        Args:
            name: The same name gets the same id and the next epoch, which fences the epoch before. None: a new id.
        Raises:
            InvalidName: the name is not allowed.
        """
        from broker.client.writing.sequences import register

        return register(self._calls, name)

    def producers(self) -> list[ProducerInfo]:
        """The producers that have names, by name."""
        value = self._calls.json("GET", path("producers"))
        return list(understand(Producers, value, where="listing producers").producers)

    def delete_producer(self, name: str) -> None:
        """Forget the name of a producer: what it still sends is refused. Raises UnknownProducer."""
        self._calls.json("DELETE", path("producers", name), done_if=UnknownProducer)

    def producer(self, stream: str, **options: Any) -> Producer:
        """A batching producer; `options` as for `Producer`. Raises UnknownStream."""
        from broker.client.producer import Producer

        return Producer(self.brokers, self.describe(stream), **{"deadline_s": self.deadline_s, **options})

    # positions

    def resolve(self, positions: Iterable[Position]) -> list[Resolved]:
        """Find offsets, heads and distances of many positions at once, in their order.

        A position that cannot be resolved has an `error`; the others are not affected.

        Raises:
            InvalidRequest: something is no position.
        """
        asked = []
        for position in positions:
            if not isinstance(position, Position):
                raise InvalidRequest(f"{position!r}: must be a Position, not {type(position).__name__}")
            asked.append(position.as_json())
        found: list[Resolved] = []
        for at in range(0, len(asked), POSITIONS_PER_CALL):
            body = {"positions": asked[at : at + POSITIONS_PER_CALL]}
            value = self._calls.json("POST", path("offsets", "resolve"), body)
            found += understand(ResolvedPositions, value, where="resolving positions").positions
        return found

    def _resolved(self, positions: Iterable[Position]) -> list[Resolved]:
        """As `resolve`; those that no broker can tell at the moment are asked for again."""
        asked = list(positions)
        found = self.resolve(asked)
        patience = Patience(self.deadline_s, what="resolving positions", outages=self.brokers.outages)
        while again := {at: e for at, one in enumerate(found) if isinstance(e := one.error, Retryable)}:
            patience.pause(next(iter(again.values())))
            for at, one in zip(again, self.resolve([asked[at] for at in again]), strict=True):
                found[at] = one
        patience.progress()
        return found

    def watch(self, since: int = 0, streams: str | Iterable[str] | None = None, *, max_wait_s: float = 20.0) -> Watch:
        """Wait until a high watermark, a log start or the set of streams changes; answer with all heads.

        Args:
            since: `version` of the last watch. 0: answer at once.
            streams: Names, `*` for any characters; None: all.
            max_wait_s: The answer comes after this time, even if nothing has changed.
        """
        names = streams if isinstance(streams, str) or streams is None else ",".join(streams)
        query = {"since": since, "max_wait_ms": int(max_wait_s * 1000), "streams": names}
        value = self._calls.json("GET", path("watch"), query=query, wait_s=max_wait_s)
        return understand(Watch, value, where="watching")

    # sinks

    def sink(self, sink: str, *, owner: str | None = None, epoch: int | None = None) -> Sink:
        """An exactly-once sink. Call `open`, or give the epoch of the run that did. No broker is asked yet.

        Args:
            owner: Name of the run that writes, the same for all of its tasks. None: a random one.
        """
        from broker.client.sinks import Sink

        return Sink(self._calls, sink, owner=owner, epoch=epoch)

    def sinks(self, *, staged: bool = False) -> list[SinkDescription]:
        """All sinks by name.

        Args:
            staged: Also what is staged for each, which the leaders of all partitions are asked for.
        """
        from broker.client.sinks import COMMITS

        query = {"staged": "true"} if staged else None
        value = self._calls.json("GET", path("sinks"), query=query, key=COMMITS)
        return list(understand(Sinks, value, where="listing sinks").sinks)

    def ready(self) -> Readiness:
        """Whether a broker is ready to serve, asked once.

        Raises:
            Unavailable: nobody answers.
        """
        return self._calls.ready()


def _payload(payload: str | None, schema: pa.Schema | None, mode: str | None) -> JsonPayload | None:
    """What decodes the values of a read; None: nothing does. Raises InvalidRequest, NotSupported."""
    if payload is None:
        for name, value in (("schema", schema), ("payload_mode", mode)):
            if value is not None:
                raise InvalidRequest(f"{name}={value!r}: means something with payload='json' only")
        return None
    if payload != "json":
        raise InvalidRequest(f"payload={payload!r}: must be 'json'")
    assert schema is not None, "given, or the stream's"
    from broker.client.payload.decoding import JsonPayload

    return JsonPayload(schema) if mode is None else JsonPayload(schema, mode=mode)
