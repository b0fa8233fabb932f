"""POST records: an Arrow stream in, the offsets of its records out.

    body (bounded) ──► frame, decode, validate, convert ──► batches ──► one commit group ──► committed ──► answer

A body is appended whole or not at all: its batches are one commit group. Big bodies are decoded in a
worker thread; the loop only moves bytes.

With `fence` it is appended if that is still the partition's (fences.py).
With `expected_offset` it is appended if its first record gets that offset. The log decides, under its append lock.

With a producer's stamp (id, epoch, sequence) a repeat of what was appended is answered with the offsets of then, once
they are committed. That is decided by the log, which knows its producers; that an epoch is the newest, by the catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from broker.api import http
from broker.api.errors import (
    DiskFull,
    ExpectationFailed,
    InvalidRecords,
    InvalidRequest,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    ReadOnly,
    RecordTooLarge,
    RequestTooLarge,
    StaleIncarnation,
    StorageFailed,
    StreamPaused,
    UnknownPartition,
    UnknownProducer,
    UnknownStream,
    WriterFenced,
)
from broker.api.permissions import of_catalog, of_path
from broker.api.plain import INT64_MAX
from broker.api.stream import CHOICES
from broker.metadata.catalog import StreamInfo
from broker.metadata.producers import is_anothers
from broker.serving.contract.acts import NO_ACT
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer, choice, integer
from broker.serving.endpoints.records import INCARNATION, find
from broker.serving.http.access import access_now
from broker.serving.http.body import Lent, Reservation, check_media, read_body, reservation_now
from broker.serving.http.gone import check_asker
from broker.serving.http.waiting import unbroken
from broker.serving.payload.decode import decode_stream
from broker.serving.payload.rows import split, to_rows
from broker.storage.memory.producers import GroupStamp
from broker.storage.rows import RowBatch

PRODUCER_EPOCH_MAX: Final = (1 << 32) - 1
DECODED_FACTOR: Final = 2
"""Records may have so many times the body limit once decompressed and complete."""
STAMP: Final = ("producer_id", "producer_epoch", "sequence")


ENDPOINTS: Final = Endpoints()


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/partitions/{partition}/records",
    "append_records",
    answer("Appended.", "Appended"),
    permission=of_path("stream:append", "stream")
    + of_catalog("producer:write", "the producer of ?producer_id", when="it has a name, or is another principal's"),
    act=NO_ACT,
    query=(
        choice(
            "acks",
            "The answer waits for this. Default: the stream's setting. `none`: until they are appended.",
            CHOICES["acks"],
        ),
        INCARNATION,
        integer(
            "producer_id",
            "The id that `POST /v1/producers` gave. Give it with `producer_epoch` and `sequence`, or none of the three."
            " A request that is repeated under the same three is appended once. The answer then has `duplicate` and the"
            " offsets of the first time.",
            least=1,
            greatest=INT64_MAX,
        ),
        integer(
            "producer_epoch",
            "If it is not the newest one, the error is `producer_fenced`.",
            least=0,
            greatest=PRODUCER_EPOCH_MAX,
        ),
        integer(
            "sequence",
            "Number of the request, per partition: 0 is the first of an epoch, each next one more. The last five"
            " may be repeated.",
            least=0,
            greatest=INT64_MAX,
        ),
        integer(
            "expected_offset",
            "Append the records if the first one gets this offset; else the error is `expectation_failed`, and"
            " `next_offset` in it is the offset that it would get. What was appended under the same `sequence` before"
            " is a repeat, whatever it expects.",
            least=0,
            greatest=INT64_MAX,
        ),
        integer(
            "fence",
            "Append the records if the partition still has this fence; else the error is `writer_fenced`. Without it,"
            " they are appended whatever its fence is.",
            least=0,
            greatest=INT64_MAX,
        ),
    ),
    request=Content(
        description="An Arrow IPC stream with its end-of-stream marker, compressed or not. Columns: `value` or"
        " `key` or both, and any of `headers`, `subject`, `timestamp`, `reply`; types as in the record schema, or"
        " such that nothing is lost.",
        media={http.ARROW_STREAM: None, "application/octet-stream": None},
    ),
    errors=(
        UnknownStream,
        UnknownPartition,
        StaleIncarnation,
        ReadOnly,
        InvalidRecords,
        RecordTooLarge,
        RequestTooLarge,
        Overloaded,
        DiskFull,
        StorageFailed,
        StreamPaused,
        UnknownProducer,
        ProducerFenced,
        OutOfSequence,
        ExpectationFailed,
        WriterFenced,
    ),
)
async def post_records(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Append the records of an Arrow stream, all or none of them."""
    handle = find(serving, request, query)
    info = appendable(serving, handle.stream)
    check_media(request, (http.ARROW_STREAM, "application/octet-stream"))
    stamp = stamp_of(query)
    await access_now.get().need("producer:write", _of_another(serving, stamp), is_told=False)
    if stamp is not None:
        serving.backend.check_producer(stamp.producer_id, stamp.epoch)
    body = await read_body(request, serving.body_bytes_max)
    serving.meters.posted_bytes.inc(len(body))
    arguments = (body, info, serving.now_us(), DECODED_FACTOR * serving.body_bytes_max, reservation_now.get(), stamp)
    encoded = await serving.decoded(len(body), encode, *arguments)
    batches = Lent(encoded, reservation_now.get().lend())
    del body, arguments, encoded
    record_count = sum(batch.record_count for batch in batches)
    is_duplicate = False
    if record_count:
        handle = find(serving, request, query, again=handle)
        if stamp is not None:
            serving.backend.check_producer(stamp.producer_id, stamp.epoch)
        check_asker()  # before it begins
        appended = handle.append(
            batches,
            acks=query["acks"] or info.settings.acks,
            expected_offset=query["expected_offset"],
            fence=query["fence"],
        )
        result = await unbroken(appended, [batches.loan])
        first_offset, next_offset = result.first_offset, result.next_offset
        is_duplicate = result.duplicate
    elif stamp is not None:
        raise InvalidRecords("a sequence without records: a producer's commit group has at least one")
    elif query["expected_offset"] is not None:
        raise InvalidRecords("an expected offset without records: no record would get it")
    elif query["fence"] is not None:
        raise InvalidRecords("a fence without records: nothing would be judged by it")
    else:
        first_offset = next_offset = handle.log.state.log_end_offset
    serving.meters.posted_records.inc(0 if is_duplicate else record_count)
    return web.json_response(
        {
            "first_offset": first_offset,
            "next_offset": next_offset,
            "record_count": record_count,
            "leader_epoch": handle.leader_epoch,
            "duplicate": is_duplicate,
        }
    )


def _of_another(serving: Serving, stamp: GroupStamp | None) -> Sequence[str]:
    """The name by which it is judged who may write as a producer; "" of one without that is another principal's."""
    if stamp is None:
        return ()
    name = serving.backend.producer_name(stamp.producer_id)
    if name is not None:
        return (name,)
    return ("",) if is_anothers(stamp.producer_id, access_now.get().caller.principal) else ()


def appendable(serving: Serving, stream: str) -> StreamInfo:
    """The stream, if clients may append to it. Raises UnknownStream; ReadOnly for the broker's own."""
    info = serving.backend.stream(stream)
    if info.internal:
        raise ReadOnly(f"stream {info.name!r} is internal: only the broker appends to it", stream=info.name)
    return info


def stamp_of(query: Query) -> GroupStamp | None:
    """The producer's stamp of a request, None when it has none. Raises InvalidRequest for a part of one."""
    values = [query[name] for name in STAMP]
    if all(value is None for value in values):
        return None
    if any(value is None for value in values):
        missing = [name for name in STAMP if query[name] is None]
        raise InvalidRequest(f"{', '.join(STAMP)}: all or none; missing: {', '.join(missing)}", parameter=missing[0])
    return GroupStamp(*values)


def encode(
    body: bytearray | memoryview,
    info: StreamInfo,
    now_us: int,
    decoded_bytes_max: int,
    reservation: Reservation,
    stamp: GroupStamp | None = None,
) -> list[RowBatch]:
    """A request body as batches to append, by the stream's settings.

    Raises:
        InvalidRecords, RecordTooLarge, RequestTooLarge: nothing of it may be stored.
        Overloaded: the memory for it is not there now.
    """
    settings = info.settings
    decoded = decode_stream(body, decoded_bytes_max=decoded_bytes_max, reserve=reservation.grow_by)
    if not decoded:
        return []
    rows, lengths = to_rows(
        decoded,
        subject=default_subject(info),
        now_us=now_us,
        record_bytes_max=settings.record_bytes_max,
        decoded_bytes_max=decoded_bytes_max,
        reserve=reservation.grow_by,
    )
    parts = split(rows, lengths, batch_bytes=settings.batch_bytes, batch_records=settings.batch_records)
    if stamp is None:
        return [RowBatch(part) for part in parts]
    ours = {"producer_id": stamp.producer_id, "producer_epoch": stamp.epoch, "sequence": stamp.sequence}
    return [RowBatch(part, **ours) for part in parts]


def default_subject(info: StreamInfo) -> str:
    """The subject of records that come without one: the stream's where it is concrete, else its name."""
    subject = info.settings.subject
    if subject is None or any(token in ("*", ">") for token in subject.split(".")):
        return info.name
    return subject
