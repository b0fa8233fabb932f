"""Calls of an operator on a cluster, by hand: move replicas, elect leaders, drain and remove brokers.

Any broker takes these calls: what they decide is a command, which the controller carries out. Each may be sent twice:
it says what should be. A call that may cost records is refused until the caller says that he knows (`accept_loss`),
and the refusal says who may have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from broker.api.errors import (
    InvalidRequest,
    InvalidSetting,
    NotLeader,
    NotReady,
    NotSupported,
    UnknownPartition,
    UnknownStream,
)
from broker.api.permissions import needs
from broker.api.placements import Placement, ReplicaEnd
from broker.api.stream import NAME_BYTES_MAX
from broker.api.validation import build
from broker.serving.contract.acts import NO_ACT, Act
from broker.serving.contract.endpoint import Endpoints, Query, Serving, answer, body, text
from broker.serving.contract.schemas import Drain, Election, Excuse, Loss, Reassignment, RescueEnd
from broker.serving.endpoints.resolve import leader_named
from broker.serving.http.access import access_now, behalf
from broker.serving.http.peers import is_from_peer
from broker.serving.http.waiting import unbroken

ENDPOINTS: Final = Endpoints()
ENDS: Final = "/v1/cluster/replicas"
_INTERRUPTED: Final = ", and so are keys whose newer records it does not have yet, as its copy was interrupted"
LOSS: Final = "/v1/cluster/accept-loss"
PEER_LOSS_S: Final = 20.0
"""A segment is written anew for each range."""


_STREAM: Final = text("stream", "Only of this stream.", length_max=NAME_BYTES_MAX)


@ENDPOINTS.add(
    "GET",
    "/v1/cluster/partitions",
    "list_partitions",
    answer("All partitions, internal ones too.", "Placements"),
    permission=needs("cluster:read"),
    act=NO_ACT,
    query=(_STREAM,),
)
async def placements(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """The replicas, leader and followers of each partition, as the answering broker knows. Nobody else is asked."""
    backend, stream = serving.backend, query["stream"]
    found = [each for each in backend.admin.placements() if stream in (None, each.stream)]
    return await serving.json_answer(_placements, found, backend.broker_id)


@ENDPOINTS.add(
    "GET",
    ENDS,
    "list_replicas",
    answer("The copies.", "ReplicaEnds"),
    permission=needs("cluster:read"),
    act=NO_ACT,
    query=(_STREAM,),
)
async def ends(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Where the copies on this broker end, whoever leads them. The copy with the greater (epoch, offset) has more."""
    stream = query["stream"]
    found = [each for each in serving.backend.admin.ends() if stream in (None, each.stream)]
    return await serving.json_answer(lambda: {"replicas": [asdict(each) for each in found]})


@ENDPOINTS.add(
    "POST",
    "/v1/cluster/reassign",
    "reassign",
    answer("The partitions, as they are now. They are moved when `target` is null.", "Placements"),
    permission=needs("cluster:operate"),
    act=Act(("stream", "partition", "replicas", "min_insync_replicas")),
    request=body("The brokers that are to keep it.", "Reassignment"),
    errors=(UnknownStream, UnknownPartition, InvalidSetting, NotSupported),
)
async def reassign(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Have other brokers keep a partition, or all of a stream. The new ones copy it first, then the old ones go."""
    asked = await serving.asked(request, Reassignment)
    backend = serving.backend
    _once(asked.replicas)
    await backend.look_for(asked.stream)
    call = backend.admin.reassign(asked.stream, asked.partition, asked.replicas, asked.min_insync_replicas)
    return await serving.json_answer(_placements, await unbroken(call), backend.broker_id)


@ENDPOINTS.add(
    "POST",
    "/v1/cluster/elect",
    "elect_leaders",
    answer("The partitions that have another leader now.", "Elected"),
    permission=needs("cluster:operate") + needs("cluster:admin", when="unclean"),
    act=Act(("stream", "partition", "unclean", "broker", "accept_loss")),
    request=body("Which leaders.", "Election"),
    errors=(UnknownStream, UnknownPartition, NotSupported),
)
async def elect(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Give leaderships to preferred replicas; or, where nobody can lead, to one that may lack records."""
    asked = await serving.asked(request, Election)
    await access_now.get().need("cluster:admin", ("",) if asked.unclean else ())
    if asked.stream is not None:
        await serving.backend.look_for(asked.stream)
    if asked.unclean:
        return await _elect_unclean(serving, asked)
    if asked.broker is not None or asked.accept_loss:
        raise InvalidRequest("`broker` and `accept_loss` need `unclean`", field="unclean")
    if asked.partition is not None and asked.stream is None:
        raise InvalidRequest("`partition` needs `stream`", field="stream")
    found = await unbroken(serving.backend.admin.elect_preferred(asked.stream, asked.partition))
    return await serving.json_answer(asdict, found)


async def _elect_unclean(serving: Serving, asked: Election) -> web.StreamResponse:
    if asked.stream is None or asked.partition is None:
        raise InvalidRequest("an unclean election needs one partition: name `stream` and `partition`", field="stream")
    now = _placement(serving, asked.stream, asked.partition)
    if now.leader is not None:
        raise InvalidRequest(
            f"{asked.stream}/{asked.partition} is led by {now.leader}: nothing has to be given up",
            field="unclean",
            leader=now.leader,
        )
    copies = await _copies(serving, now)
    chosen = _chosen(now, copies, asked.broker)
    away = sorted({*(now.isr or now.last_isr)} - {each.broker for each in copies})
    others = ", ".join(map(_copy_text, copies))
    if chosen.is_interrupted and asked.broker is None:
        raise InvalidRequest(
            f"{now.stream}/{now.partition}: the copy of {chosen.broker} is the longest, and was interrupted: it lacks"
            f" keys whose newer records it does not have yet. Copies that are there: {others}. To elect one of them,"
            " name it with `broker` (--broker)",
            field="broker",
            chosen=asdict(chosen),
            may_have_more=away,
            copies=[asdict(each) for each in copies],
        )
    if not asked.accept_loss:
        raise InvalidRequest(
            f"{now.stream}/{now.partition}: {chosen.broker} would lead from offset {chosen.log_end_offset} of epoch"
            f" {chosen.last_epoch}. Every committed record is on {_joined(away)}, which cannot lead now: what only they"
            f" have is lost for good{_INTERRUPTED if chosen.is_interrupted else ''}. Copies that are there: {others}."
            " To do it, repeat it with accept_loss (--yes)",
            field="accept_loss",
            chosen=asdict(chosen),
            may_have_more=away,
            copies=[asdict(each) for each in copies],
        )
    epoch = max(each.last_epoch for each in copies)
    call = serving.backend.admin.elect_unclean(now.stream, now.partition, chosen.broker, epoch)
    return web.json_response({"moved": [asdict(await unbroken(call))], "passed": []})


@ENDPOINTS.add(
    "POST",
    LOSS,
    "accept_loss",
    answer("The offsets that were given up.", "GivenUp"),
    permission=needs("cluster:admin"),
    act=Act(("stream", "partition", "accept_loss")),
    request=body("The partition.", "Loss"),
    errors=(UnknownStream, UnknownPartition, NotSupported),
)
async def accept_loss(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Let what is damaged be empty, where no other replica has it. All else stays, and replicas can follow again."""
    asked = await serving.asked(request, Loss)
    backend = serving.backend
    await backend.look_for(asked.stream)
    try:
        backend.partition(asked.stream, asked.partition)
    except NotLeader as error:
        address = leader_named(error)
        if address is None or is_from_peer(request):
            raise
        said = await serving.peers.ask(
            address, "POST", LOSS, body=asdict(asked), timeout_s=PEER_LOSS_S, behalf=behalf()
        )
        return web.json_response(said)
    call = backend.admin.accept_loss(asked.stream, asked.partition, is_accepted=asked.accept_loss)
    return await serving.json_answer(asdict, await unbroken(call))


def _placement(serving: Serving, stream: str, partition: int) -> Placement:
    of_stream = [each for each in serving.backend.admin.placements() if each.stream == stream]
    found = [each for each in of_stream if each.partition == partition]
    if not found:
        count = len(serving.backend.whereabouts(stream))
        raise UnknownPartition(f"stream {stream!r} has no partition {partition}, it has {count}", partitions=count)
    return found[0]


async def _copies(serving: Serving, now: Placement) -> list[ReplicaEnd]:
    """The copies of a partition on brokers that answer, the one that has most first."""
    backend = serving.backend
    found = backend.admin.ends()
    others = [
        each["http"]
        for each in backend.brokers()
        if each["id"] in now.replicas and each["live"] and each["id"] != backend.broker_id
    ]
    for said in await serving.peers.ask_all(others, "GET", ENDS, query={"stream": now.stream}):
        found += [build(ReplicaEnd, each, is_open=True) for each in said.get("replicas", ())]
    copies = [
        each
        for each in found
        if (each.stream, each.partition) == (now.stream, now.partition) and each.broker in now.replicas
    ]
    return sorted(copies, key=lambda each: (-each.last_epoch, -each.log_end_offset, each.broker))


def _copy_text(copy: ReplicaEnd) -> str:
    more = ", interrupted" if copy.is_interrupted else ""
    return f"{copy.broker} (epoch {copy.last_epoch}, offset {copy.log_end_offset}{more})"


def _chosen(now: Placement, copies: Sequence[ReplicaEnd], broker: str | None) -> ReplicaEnd:
    if not copies:
        raise NotReady(f"{now.stream}/{now.partition}: none of {_joined(now.replicas)} is there with a copy")
    for each in copies:
        if broker in (None, each.broker):
            return each
    there = [each.broker for each in copies]
    raise InvalidRequest(
        f"broker {broker} is not there with a copy; these are: {_joined(there)}", field="broker", value=broker
    )


@ENDPOINTS.add(
    "POST",
    "/v1/cluster/brokers/{broker}/drain",
    "drain_broker",
    answer("The replicas that it still keeps. Ask again until there are none.", "Drained"),
    permission=needs("cluster:operate"),
    act=Act(("fewer_replicas",), is_polled=True),
    request=body("How it is to be done.", "Drain"),
    errors=(NotSupported,),
)
async def drain(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Have other brokers keep what a broker keeps, so that it can be removed. It may be there meanwhile, or gone."""
    asked = await serving.asked(request, Drain)
    call = serving.backend.admin.drain(request.match_info["broker"], fewer_replicas=asked.fewer_replicas)
    return await serving.json_answer(asdict, await unbroken(call))


@ENDPOINTS.add(
    "DELETE",
    "/v1/cluster/brokers/{broker}",
    "remove_broker",
    answer("It is removed.", "RemovedBroker"),
    permission=needs("cluster:admin"),
    act=Act(),
    errors=(NotSupported,),
)
async def remove(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Give up a broker that does not live and keeps nothing, for good: its vote goes, its data folder is refused."""
    broker = request.match_info["broker"]
    await unbroken(serving.backend.admin.remove_broker(broker))
    return web.json_response({"removed": broker})


@ENDPOINTS.add(
    "GET",
    "/v1/cluster/rescue",
    "describe_rescue",
    answer("How far it is.", "RescueState"),
    permission=needs("cluster:read"),
    act=NO_ACT,
)
async def rescue_state(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Whether a rescue of the catalog is under way, and who is missing in it."""
    return await serving.json_answer(asdict, await serving.backend.admin.rescue())


@ENDPOINTS.add(
    "POST",
    "/v1/cluster/rescue/excuse",
    "excuse_replicas",
    answer("How far the rescue is now.", "RescueState"),
    permission=needs("cluster:admin"),
    act=Act(("broker", "stream", "partition", "accept_loss")),
    request=body("The replicas that are given up.", "Excuse"),
    errors=(UnknownStream, UnknownPartition, NotSupported),
)
async def excuse(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """In a rescue, give up what a broker may have had: all, or of one stream or partition. Records that only it had are
    lost."""
    asked = await serving.asked(request, Excuse)
    if asked.partition is not None and asked.stream is None:
        raise InvalidRequest("`partition` needs `stream`", field="stream")
    if not asked.accept_loss:
        of = "all" if asked.stream is None else asked.stream
        raise InvalidRequest(
            f"committed records that only broker {asked.broker} has would be lost for good, of {of}. To do it, repeat"
            " it with accept_loss (--yes)",
            field="accept_loss",
        )
    found = await unbroken(serving.backend.admin.excuse(asked.broker, asked.stream, asked.partition))
    return await serving.json_answer(asdict, found)


@ENDPOINTS.add(
    "POST",
    "/v1/cluster/rescue/end",
    "end_rescue",
    answer("The leader of each partition, and its end.", "RescueEnded"),
    permission=needs("cluster:admin"),
    act=Act(("brokers",)),
    request=body("The brokers that there were.", "RescueEnd"),
    errors=(NotSupported,),
)
async def end_rescue(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """End a rescue: in each partition the most complete log leads. Refused while somebody is missing."""
    asked = await serving.asked(request, RescueEnd)
    return await serving.json_answer(asdict, await unbroken(serving.backend.admin.end_rescue(asked.brokers)))


def _placements(found: Sequence[Placement], answered_by: str) -> dict[str, Any]:
    return {"partitions": [asdict(each) for each in found], "answered_by": answered_by}


def _once(replicas: Sequence[str]) -> None:
    if len(set(replicas)) < len(replicas):
        raise InvalidRequest("replicas: a broker is named twice", field="replicas", value=list(replicas))


def _joined(brokers: Sequence[str]) -> str:
    return ", ".join(brokers) or "nobody that is known"
