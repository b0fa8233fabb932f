"""Appending Arrow record batches to one partition: the low level, which the producer and Spark's executors use.

    AppendCalls(brokers).append("orders", 0, batch)  ->  Appended(first_offset, next_offset, …)

One call is one HTTP request and one commit group: its records are appended whole, in order, or not at
all. It is repeated while that is certain to have had no effect. When an answer was lost on its way
the records may be stored or not: that is an error whose field `sent` is true, unless the caller chose
`at_least_once`; then they are sent again, and may be stored twice. With the stamp of an idempotent producer they are
sent again and stored once; `sent` is true if time ran out, or the broker refused, after such a try. So they are with an
expected offset, which only one of all tries can find.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlencode

import pyarrow as pa

from broker.api import http
from broker.api.answers import AppendAnswer, Appended, BundleAppended
from broker.api.errors import InvalidRecords, InvalidRequest
from broker.client.http.address import Address
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls, path, understand
from broker.client.http.patience import DEADLINE_S
from broker.client.http.pool import Request
from broker.client.positions import whole
from broker.client.writing.records import Records, record_batches

TIMEOUT_S: Final = 30.0
BUNDLE_HEADERS: Final = {"Content-Type": "application/octet-stream", "Accept": "application/json"}
ALIGNED: Final = 64
"""Arrow's buffers begin at such places."""
ARROW_HEADERS: Final = {"Content-Type": http.ARROW_STREAM, "Accept": "application/json"}


@dataclass(frozen=True, slots=True)
class Stamp:
    """The stamp of a request. `sequence` counts the requests to one partition, from 0 in each epoch.

    Id and epoch come from `Client.register_producer`.
    """

    producer_id: int
    producer_epoch: int
    sequence: int


class AppendCalls:
    """Appends to any stream of a cluster. Thread-safe and fork-safe.

    Args:
        brokers: The brokers of the cluster; `FetchSession.brokers` may be shared.
        timeout_s: Longest silence of the socket; an answer waits for an fsync.
        deadline_s: An append gives up if failures follow each other for this time.
        call_timeout_s: It gives up after this time, also if nobody has answered.
    """

    def __init__(
        self,
        brokers: Brokers,
        *,
        timeout_s: float = TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        call_timeout_s: float = math.inf,
    ) -> None:
        self._calls = Calls(brokers, timeout_s=timeout_s, deadline_s=deadline_s, call_timeout_s=call_timeout_s)

    def append(
        self,
        stream: str,
        partition: int,
        records: Records,
        *,
        acks: str | None = None,
        incarnation: str | None = None,
        at_least_once: bool = False,
        stamp: Stamp | None = None,
        expected_offset: int | None = None,
        fence: int | None = None,
    ) -> Appended:
        """Append records of any of the columns key, value, headers, subject, timestamp, reply.

        Args:
            records: As Arrow, as a data frame or as dicts (records.py), with `value` or `key`. 64 MiB encoded at most
                (the broker's limit), which is the caller's to keep.
            acks: `all`, `leader` or `none`; None: the stream's setting.
            incarnation: The stream's incarnation that is meant.
            at_least_once: Send again also when a try may have been carried out.
            stamp: Send again too, but the broker stores it once; `Appended.duplicate` says that a try before had been
                carried out. One request of a producer and partition at a time.
            expected_offset: Append them if the first one gets this offset. Then they are sent again as with a stamp:
                of all tries one at most is stored.
            fence: The number that `Client.fence` gave to this writer: append them if nobody has fenced the partition
                since.
        Raises:
            Retryable: nobody could take the records within the deadline.
            InvalidRecords, RecordTooLarge, RequestTooLarge: the records cannot be appended.
            UnknownStream, UnknownPartition, ReadOnly, StaleIncarnation: as they say.
            UnknownProducer, ProducerFenced, OutOfSequence: the stamp does not fit.
            WriterFenced: somebody has fenced the partition since.
            ExpectationFailed: they would get the offset `next_offset`. With `sent`, without a stamp: what stands at the
                expected one may be these records.
            LiftlogError: a fault of the broker, or an answer that nobody understands.
            Each of them means that nothing was appended, unless its field `sent` is true: then nobody knows.
        """
        number = whole(partition)
        if number is None:
            raise InvalidRequest(f"partition={partition!r}: must be a whole number")
        partition = number
        query: dict[str, Any] = {n: v for n, v in (("acks", acks), ("incarnation", incarnation)) if v is not None}
        if stamp is not None and not isinstance(stamp, Stamp):
            raise InvalidRequest(f"stamp={stamp!r}: must be a Stamp, not {type(stamp).__name__}")
        if stamp is not None:
            query |= asdict(stamp)
        for name, given in (("expected_offset", expected_offset), ("fence", fence)):
            if given is not None and (number := whole(given)) is None:
                raise InvalidRequest(f"{name}={given!r}: must be a whole number")
            query |= {} if given is None else {name: number}
        target = path("streams", stream, "partitions", partition, "records")
        request = Request(
            method="POST",
            target=f"{target}?{urlencode(query)}" if query else target,
            body=encode(records),
            headers=ARROW_HEADERS,
            timeout_s=self._calls.timeout_s,
            is_idempotent=at_least_once or stamp is not None or expected_offset is not None,
        )
        value = self._calls.send(request, key=(stream, partition))
        found = understand(AppendAnswer, value, where=f"appending to {stream}/{partition}")
        return Appended(partition=partition, **asdict(found))

    def append_bundle(
        self, stream: str, parts: Sequence[tuple[int, int]], records: Records, *, incarnation: str | None = None
    ) -> tuple[int, ...] | None:
        """Append records to several partitions, at least once, in one request to the broker that leads the first one.

        Args:
            parts: Each a partition, and how many of the records, in their order, are for it.
        Returns:
            The partitions whose records were not appended, or may not be; None: brokers take no bundles yet.
        Raises:
            As `append`, of the bundle as a whole.
        """
        named = [{"partition": partition, "rows": rows} for partition, rows in parts]
        head, body = bundled(named, records)
        query = {"head": head, **({} if incarnation is None else {"incarnation": incarnation})}
        request = Request(
            method="POST",
            target=f"{path('streams', stream, 'records')}?{urlencode(query)}",
            body=body,
            headers=BUNDLE_HEADERS,
            timeout_s=self._calls.timeout_s,
        )
        try:
            value = self._calls.send(request, key=(stream, parts[0][0]))
        except InvalidRequest as error:
            if "path" in error.fields:  # of an older release
                return None
            raise
        return understand(BundleAppended, value, where=f"appending to {stream}").failed

    def asked_first(self, stream: str, partition: int) -> Address:
        """As `Sink.asked_first`."""
        return self._calls.brokers.candidates((stream, partition))[0]


def bundled(parts: Sequence[Mapping[str, Any]], records: Records) -> tuple[int, bytes]:
    """The body of a bundle, and how many bytes of it name the parts. Raises InvalidRecords."""
    named = json.dumps({"parts": list(parts)}).encode()
    head = named.ljust(-(-len(named) // ALIGNED) * ALIGNED)
    return len(head), b"".join((head, memoryview(encode(records))))


def encode(records: Records) -> Any:
    """Records as the bytes of an Arrow IPC stream (a `pyarrow.Buffer`).

    Raises:
        InvalidRecords: none, not records, or batches of different schemas.
    """
    batches = list(record_batches(records))
    if not batches:
        raise InvalidRecords("no records given")
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidRecords(f"records cannot be encoded: {error}") from error
    return sink.getvalue()
