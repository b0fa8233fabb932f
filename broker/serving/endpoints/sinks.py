"""Exactly-once sinks: open one, stage records for it, commit them as one batch.

    POST sinks/{sink}/open ──► epoch ──► POST streams/…/stages (any number, anywhere) ──► POST sinks/{sink}/commit
      (owner)                              (epoch)                                          (owner, epoch)

Everything answered is on disk. Nothing staged is visible before its commit, and then all of it in a partition at once.
The protocol, state by state: docs/explain/sinks.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from operator import attrgetter
from typing import Any, Final

from aiohttp import web

from broker.api import http
from broker.api.errors import (
    DiskFull,
    InvalidName,
    InvalidRecords,
    InvalidRequest,
    NotReady,
    Overloaded,
    ReadOnly,
    RecordTooLarge,
    RequestTooLarge,
    SinkBatchesMissing,
    SinkBatchRegressed,
    SinkDestinationNew,
    SinkFenced,
    SinkForked,
    SinkRowsDiffer,
    StageLost,
    StagesFull,
    StaleIncarnation,
    StorageFailed,
    StreamPaused,
    UnknownPartition,
    UnknownSink,
    UnknownStream,
)
from broker.api.permissions import needs, of_answer, of_body, of_path, of_query
from broker.api.plain import INT64_MAX
from broker.api.stream import check_name
from broker.serving.contract.acts import NO_ACT, Act
from broker.serving.contract.endpoint import (
    Content,
    Endpoints,
    Query,
    Serving,
    answer,
    body,
    boolean,
    choice,
    integer,
    parameter,
    text,
)
from broker.serving.contract.schemas import (
    PARTS_MAX,
    SilencesAsked,
    SinkAbort,
    SinkAdopt,
    SinkCheck,
    SinkCommit,
    SinkEnd,
    SinkOpen,
    SinkRenew,
    SinkReset,
    StageName,
    StagesAsked,
)
from broker.serving.endpoints.append import DECODED_FACTOR, appendable, encode
from broker.serving.endpoints.records import INCARNATION, find
from broker.serving.http.access import access_now
from broker.serving.http.body import Lent, check_media, read_body, reservation_now
from broker.serving.http.peers import is_from_peer
from broker.serving.http.waiting import unbroken
from broker.sinks.destinations import destinations
from broker.sinks.ledger import CommitRequest
from broker.sinks.silence import Holding, Owner, Silence
from broker.sinks.stages import stages_full_seen
from broker.sinks.state import SinkState

STAGES_BYTES_MAX: Final = 16 << 20
"""Most bytes of the JSON body of a commit: room for `STAGES_MAX` stages."""
STAGES_ITEMS_MAX: Final = 400_000
"""Most JSON items of that body; each stage has six."""

ENDPOINTS: Final = Endpoints()
_STAGE_QUERY: Final = (
    text("sink", "Sink of the stage. Required."),
    integer("epoch", "The epoch that `open` gave. Required.", least=0, greatest=INT64_MAX),
    parameter("stage", "Names the stage: 128 random bits, of one writing task. Required.", StageName),
    integer(
        "part",
        "Number of this part of the stage, from 0. The same part again is stored once. Required.",
        least=0,
        greatest=PARTS_MAX - 1,
    ),
    choice("last", "`true` with the part of the greatest number: the stage is complete.", ("true", "false"), "false"),
    INCARNATION,
)
_STORAGE: Final = (DiskFull, StorageFailed, StreamPaused, ReadOnly, UnknownStream, UnknownPartition)
_FINISHING: Final = (NotReady, *_STORAGE)
"""Also why the last decision cannot be finished now."""
_SINK: Final = answer("The sink.", "Sink")


@ENDPOINTS.add(
    "GET",
    "/v1/sinks",
    "list_sinks",
    answer("The sinks.", "Sinks"),
    permission=of_answer("sink:read"),
    act=NO_ACT,
    query=(boolean("staged", "Also what is staged for each sink, which asks the leaders of all partitions."),),
)
async def list_all(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """All sinks with their last decision, by name."""
    backend, of, access = serving.backend, attrgetter("sink"), access_now.get()
    if access.is_strangers("sink:read"):
        return web.json_response({"sinks": access.seen("sink:read", (), of)})
    if not query["staged"]:
        states = access.seen("sink:read", await backend.sinks.states(), of)
        return await serving.json_answer(lambda: {"sinks": [state_json(state) for state in states]})
    described, staged = await backend.sinks.described()
    states = access.seen("sink:read", described, of)
    return await serving.json_answer(
        lambda: {"sinks": [{**state_json(state), "staged": _staged_json(state, staged)} for state in states]}
    )


@ENDPOINTS.add(
    "GET",
    "/v1/sinks/{sink}",
    "describe_sink",
    _SINK,
    permission=of_path("sink:read", "sink"),
    act=NO_ACT,
    errors=(UnknownSink,),
)
async def describe(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """One sink with its last decision."""
    state = await serving.backend.sinks.describe(_sink(request))
    return await serving.json_answer(lambda: state_json(state))


@ENDPOINTS.add(
    "POST",
    "/v1/sinks/{sink}/open",
    "open_sink",
    answer("The owner's epoch, and the sink. Nobody is fenced before this owner commits.", "SinkOpened"),
    permission=of_path("sink:write", "sink"),
    act=NO_ACT,
    request=body("The owner that opens it.", "SinkOpen"),
    errors=(InvalidName, SinkFenced, DiskFull, StorageFailed),
)
async def open_sink(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Give a run its epoch of a sink, which is made if need be. The same owner gets the same epoch again."""
    sink = check_name(_sink(request), what="sink")
    asked = await serving.asked(request, SinkOpen)
    await _admit(serving, sink)
    opened = await unbroken(serving.backend.sinks.open(sink, asked.owner, is_one_shot=asked.one_shot))
    answer = {"owner": opened.owner, "epoch": opened.epoch, "renew_ms": serving.backend.sinks.renew_ms}
    return await serving.json_answer(lambda: {**answer, **state_json(opened.state)})


async def _admit(serving: Serving, sink: str) -> None:
    """Raises LimitReached: its caller makes too many."""

    async def there() -> list[str]:
        return [state.sink for state in await serving.backend.sinks.states()]

    try:
        await serving.backend.sinks.describe(sink)
    except UnknownSink:
        await serving.names.admit("sinks", sink, there)


@ENDPOINTS.add(
    "POST",
    "/v1/sinks/{sink}/renew",
    "renew_owner",
    answer("It is heard. When it shall renew again.", "SinkRenewed"),
    permission=of_path("sink:write", "sink"),
    act=NO_ACT,
    request=body("The owner that lives.", "SinkRenew"),
    errors=(UnknownSink, SinkFenced),
)
async def renew(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Say that an owner lives. What a silent one has staged goes when others need the room."""
    asked = await serving.asked(request, SinkRenew)
    return web.json_response({"renew_ms": await serving.backend.sinks.renew(_sink(request), asked.owner)})


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/partitions/{partition}/stages",
    "stage_records",
    answer("Durable.", "Staged"),
    permission=of_path("stream:append", "stream") + of_query("sink:write", "sink"),
    act=NO_ACT,
    query=_STAGE_QUERY,
    request=Content(
        description="As for `append_records`; no records at all are allowed.",
        media={http.ARROW_STREAM: None, "application/octet-stream": None},
    ),
    errors=(
        InvalidName,
        StaleIncarnation,
        InvalidRecords,
        RecordTooLarge,
        RequestTooLarge,
        Overloaded,
        UnknownSink,
        SinkFenced,
        StageLost,
        StagesFull,
        *_STORAGE,
    ),
)
async def stage(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Store records of a sink, invisible until they are committed."""
    handle = find(serving, request, query)
    info = appendable(serving, handle.stream)
    for needed in _STAGE_QUERY[:4]:
        if query[needed.name] is None:
            raise InvalidRequest(f"query parameter {needed.name!r} is missing", parameter=needed.name)
    check_media(request, (http.ARROW_STREAM, "application/octet-stream"))
    body = await read_body(request, serving.body_bytes_max)
    serving.meters.posted_bytes.inc(len(body))
    arguments = (body, info, serving.now_us(), DECODED_FACTOR * serving.body_bytes_max, reservation_now.get())
    encoded = await serving.decoded(len(body), encode, *arguments)
    batches = Lent(encoded, reservation_now.get().lend())
    del body, arguments, encoded
    record_count = sum(batch.record_count for batch in batches)
    find(serving, request, query, again=handle)
    with holders_seen(query["sink"]):
        is_new = await unbroken(
            serving.backend.sinks.stage(
                handle.stream,
                handle.partition,
                batches,
                sink=check_name(query["sink"], what="sink"),
                epoch=query["epoch"],
                stage=query["stage"],
                part=query["part"],
                is_last=query["last"] == "true",
            ),
            [batches.loan],
        )
    return web.json_response(
        {"stage": query["stage"], "part": query["part"], "record_count": record_count, "stored": is_new}
    )


@contextmanager
def holders_seen(own: str) -> Iterator[None]:
    """An error for want of room names the sinks that its caller may be told of, and his own."""
    try:
        yield
    except StagesFull as error:
        seen = {own, *access_now.get().seen("sink:read", error.fields["sinks"], str)}
        raise stages_full_seen(error, seen.__contains__) from error


@ENDPOINTS.add(
    "POST",
    "/v1/sinks/{sink}/commit",
    "commit_sink",
    answer(
        "`committed`, or `already_done`: the first decision for this batch id stands and is complete."
        " The answer describes it. Stages that it does not name were dropped.",
        "SinkCommitted",
    ),
    permission=of_path("sink:write", "sink") + of_body("stream:append", "stages[].stream"),
    act=NO_ACT,
    request=body("The batch.", "SinkCommit"),
    errors=(
        UnknownSink,
        SinkFenced,
        SinkBatchRegressed,
        SinkBatchesMissing,
        SinkForked,
        SinkRowsDiffer,
        SinkDestinationNew,
        StageLost,
        RequestTooLarge,
        *_STORAGE,
    ),
)
async def commit_batch(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Make the records of these stages one batch of the sink, once, whatever happens."""
    sink = _sink(request)
    asked = await serving.asked(request, SinkCommit, STAGES_BYTES_MAX, STAGES_ITEMS_MAX)
    await access_now.get().need("stream:append", {stage.stream for stage in asked.stages})
    commit = CommitRequest(
        owner=asked.owner,
        epoch=asked.epoch,
        batch_id=asked.batch_id,
        rows=asked.rows,
        digest=asked.digest,
        follows=asked.follows,
        keeps_first=asked.on_repeat_with_other_rows == "keep_first",
        accepts_new=asked.on_new_destination == "accept",
    )
    done = await unbroken(serving.backend.sinks.commit(sink, commit, asked.stages, asked.attributes))
    outcome = "committed" if done.is_new else "already_done"
    return await serving.json_answer(lambda: {"outcome": outcome, **state_json(done.state)})


@ENDPOINTS.add(
    "POST",
    "/v1/sinks/{sink}/abort",
    "abort_stages",
    answer("How many went.", "SinkAborted"),
    permission=of_path("sink:write", "sink") + of_body("stream:append", "stages[].stream"),
    act=NO_ACT,
    request=body("The stages.", "SinkAbort"),
    errors=_STORAGE,
)
async def abort(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Drop stages. Those that a commit has named are left alone."""
    stages = (await serving.asked(request, SinkAbort, STAGES_BYTES_MAX, STAGES_ITEMS_MAX)).stages
    await access_now.get().need("stream:append", {stage.stream for stage in stages})
    return web.json_response({"dropped": await unbroken(serving.backend.sinks.abort(_sink(request), stages))})


@ENDPOINTS.add(
    "POST",
    "/v1/sinks/{sink}/end",
    "end_sink",
    {204: Content(description="It has ended.")},
    permission=of_path("sink:write", "sink"),
    act=NO_ACT,
    request=body("The owner whose sink it is.", "SinkEnd"),
    errors=(InvalidName, SinkFenced, DiskFull, StorageFailed),
)
async def end(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Supersede the owner of a sink for one batch, and drop what is staged for it. What comes late is refused."""
    sink = check_name(_sink(request), what="sink")
    asked = await serving.asked(request, SinkEnd)
    await _admit(serving, sink)  # one that nobody has opened yet is made
    await unbroken(serving.backend.sinks.end(sink, asked.owner))
    return web.Response(status=204)


@ENDPOINTS.add(
    "POST",
    "/v1/sinks/{sink}/reset",
    "reset_sink",
    _SINK,
    permission=of_path("sink:admin", "sink"),
    act=Act(("next_batch_id",)),
    request=body("The next batch id.", "SinkReset"),
    errors=(UnknownSink, *_FINISHING),
)
async def reset(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Let a sink go on with any batch id. Committed records stay. Only new owners may commit."""
    asked = await serving.asked(request, SinkReset)
    state = await unbroken(serving.backend.sinks.reset(_sink(request), asked.next_batch_id))
    return await serving.json_answer(lambda: state_json(state))


@ENDPOINTS.add(
    "POST",
    "/v1/sinks/{sink}/adopt",
    "adopt_sink",
    _SINK,
    permission=of_path("sink:admin", "sink"),
    act=Act(("checkpoint",)),
    request=body("The checkpoint.", "SinkAdopt"),
    errors=(UnknownSink, DiskFull, StorageFailed),
)
async def adopt(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Give a sink to another checkpoint, because it was moved. Earlier decisions stay and count."""
    asked = await serving.asked(request, SinkAdopt)
    state = await unbroken(serving.backend.sinks.adopt(_sink(request), asked.checkpoint))
    return await serving.json_answer(lambda: state_json(state))


@ENDPOINTS.add(
    "DELETE",
    "/v1/sinks/{sink}",
    "delete_sink",
    {204: Content(description="It is forgotten.")},
    permission=of_path("sink:admin", "sink"),
    act=Act(),
    errors=(UnknownSink, *_FINISHING),
)
async def delete(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Forget a sink, and drop what is staged for it. Committed records stay."""
    await unbroken(serving.backend.sinks.delete(_sink(request)))
    return web.Response(status=204)


@ENDPOINTS.add(
    "POST",
    "/v1/sinks/{sink}/check",
    "check_sink",
    {204: Content(description="It may.")},
    permission=needs("broker"),
    act=NO_ACT,
    request=body("The epoch.", "SinkCheck"),
    errors=(UnknownSink, SinkFenced),
)
async def check(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """For brokers: whether records may be staged under an epoch."""
    asked = await serving.asked(request, SinkCheck)
    _from_broker(request)
    await serving.backend.sinks.check(_sink(request), asked.epoch)
    return web.Response(status=204)


@ENDPOINTS.add(
    "POST",
    "/v1/sinks/silences",
    "ask_silences",
    answer("How long each was not heard of.", "StagesAnswer"),
    permission=needs("broker"),
    act=NO_ACT,
    request=body("The owners.", "SilencesAsked"),
)
async def silences(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """For brokers: which owners of sinks are silent."""
    asked = await serving.asked(request, SilencesAsked, STAGES_BYTES_MAX, STAGES_ITEMS_MAX)
    _from_broker(request)
    found = await serving.backend.sinks.silences(asked.owners)
    return web.json_response({"silences": [asdict(each) for each in found]})


@ENDPOINTS.add(
    "POST",
    "/v1/streams/{stream}/partitions/{partition}/stages/ask",
    "ask_stages",
    answer("The answer to the question.", "StagesAnswer"),
    permission=needs("broker"),
    act=NO_ACT,
    query=(INCARNATION,),
    request=body("The question.", "StagesAsked"),
    errors=(StaleIncarnation, StageLost, RequestTooLarge, *_STORAGE),
)
async def ask(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """For brokers: what the coordinator of sinks asks of the stages of a partition."""
    asked = await serving.asked(request, StagesAsked, STAGES_BYTES_MAX, STAGES_ITEMS_MAX)
    _from_broker(request)
    handle = find(serving, request, query)
    done = await unbroken(
        serving.backend.sinks.ask(handle.stream, handle.partition, asked.incarnation, asked.act, asked.what)
    )
    return await serving.json_answer(lambda: done)


def _from_broker(request: web.Request) -> None:
    if not is_from_peer(request):
        raise InvalidRequest(
            f"this call is for other brokers of the cluster: header {http.ASKED_BY} is missing", parameter=http.ASKED_BY
        )


def state_json(state: SinkState) -> dict[str, Any]:
    """A sink, as `Sink` of the contract."""
    last = state.last
    return {
        "sink": state.sink,
        "current_epoch": state.epoch,
        "checkpoint": state.checkpoint,
        "one_shot": state.is_one_shot,
        "least_batch_id": state.batch_id_least,
        "changed_ms": state.changed_us // 1000,
        "destinations": destinations(state),
        "last": last
        and {
            "batch_id": last.batch_id,
            "decision": last.decision,
            "owner": last.owner,
            "epoch": last.epoch,
            "rows": last.rows,
            "digest": last.digest,
            "attributes": dict(last.attributes),
            "decided_ms": last.decided_us // 1000,
            "complete": state.is_done,
            "stages": [
                {"stream": r.stream, "partition": r.partition, "stage": r.stage, "parts": r.parts, "rows": r.rows}
                for r in last.stages
            ],
        },
    }


def _staged_json(state: SinkState, staged: Mapping[Owner, tuple[Holding, Silence]]) -> list[dict[str, Any]]:
    owners = {epoch: owner for owner, epoch in state.owners.items()}
    return [
        {
            "owner": owners.get(epoch),
            "epoch": epoch,
            "stages": held.stages,
            "byte_count": held.byte_count,
            "pinned": held.pinned,
            "silent_ms": silence.silent_us // 1000,
            "is_silent": silence.is_silent,
        }
        for (sink, epoch), (held, silence) in sorted(staged.items(), key=lambda each: each[0])
        if sink == state.sink
    ]


def _sink(request: web.Request) -> str:
    return request.match_info["sink"]
