"""The options of the sink: names, defaults, limits, errors.

    option                  sink             default            values
    brokers                 batch  stream    LIFTLOG_BROKERS    HTTP addresses, comma separated
    tlsCa, tlsCert, tlsKey  batch  stream    LIFTLOG_TLS_CA …   paths of PEM files, for https:// brokers
    tokenFile               batch  stream    LIFTLOG_TOKEN_FILE path of a file with a token
    profile                 batch  stream    LIFTLOG_PROFILE    name of a profile, or PATH#NAME
    stream (or the path)    batch  stream    column stream      a stream's name
    subject                 batch  stream    the stream's       a NATS subject, for frames without such a column
    partitioner             batch  stream    key                key, roundRobin
    deliveryGuarantee       batch  stream    exactly-once       exactly-once, at-least-once
    sinkId                         stream    the query's id     a name; the state of the sink is kept under it
    onRepeatWithOtherRows          stream    refuse             refuse, keepFirst
    onMissingBatches               stream    refuse             refuse, accept
    onNewDestination        batch  stream    refuse             refuse, accept
    txnAppId, txnVersion    batch            none               text; a whole number from 0
    deadLetterStream        batch  stream    none: an error     a stream's name
    deliveryTimeoutMs       batch  stream    120000             1 to 86,400,000

As for the source: honoured or refused, never ignored (`parsing.P1`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from broker.api.errors import InvalidSetting, UnknownSetting
from broker.api.stream import check_name, check_subject
from spark_liftlog.parsing import (
    OFFSET_MAX,
    TIMEOUT_MS_MAX,
    Kind,
    brokers_in,
    invalid,
    known,
    naming,
    of_kind,
    one_of,
    stream_in,
    whole,
)
from spark_liftlog.place import Place

TIMEOUT_MS: Final = 120_000
TXN_APP_ID_MAX: Final = 1024

_BOTH: Final = frozenset(("batch", "stream"))
_BATCH: Final = frozenset(("batch",))
_STREAM: Final = frozenset(("stream",))
SINK_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "brokers": _BOTH,
    "tlsCa": _BOTH,
    "tlsCert": _BOTH,
    "tlsKey": _BOTH,
    "tokenFile": _BOTH,
    "profile": _BOTH,
    "stream": _BOTH,
    "subject": _BOTH,
    "partitioner": _BOTH,
    "deliveryGuarantee": _BOTH,
    "sinkId": _STREAM,
    "onRepeatWithOtherRows": _STREAM,
    "onMissingBatches": _STREAM,
    "onNewDestination": _BOTH,
    "txnAppId": _BATCH,
    "txnVersion": _BATCH,
    "deadLetterStream": _BOTH,
    "deliveryTimeoutMs": _BOTH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The sink's options, checked. The table above says what they mean.

    Attributes:
        stream: None: the frame's column stream names it.
        sink_id: None: the query's id.
        accepts_missing: A sink that lacks batches of the checkpoint goes on all the same.
        on_new_destination: Whether to go on where a stream was deleted and made anew since the sink wrote it.
        checkpoint: The place of the query's checkpoint; None where it comes from the session.
    """

    brokers: Place
    stream: str | None
    subject: str | None = None
    partitioner: str = "key"
    is_exactly_once: bool = True
    sink_id: str | None = None
    on_repeat: Literal["refuse", "keep_first"] = "refuse"
    accepts_missing: bool = False
    on_new_destination: Literal["refuse", "accept"] = "refuse"
    txn_app_id: str | None = None
    txn_version: int | None = None
    dead_letter_stream: str | None = None
    delivery_timeout_s: float = TIMEOUT_MS / 1000
    checkpoint: str | None = None


def sink_options(given: Mapping[str, str], kind: Kind) -> SinkOptions:
    """Check the options of a write.

    Raises:
        UnknownSetting: an option that the sink does not have, or not for this kind of write.
        InvalidSetting: a value of a wrong form or beyond its limit, or options that contradict each other.
        InvalidName, InvalidSubject: as they say.
    """
    reads = next((name for name in ("mode", "resolve") if name in (key.lower() for key in given)), None)
    if reads is not None:
        raise UnknownSetting(
            f"the liftlog sink has no option {reads!r}: it is one of a read, so what has it is not written to; write"
            " through a view that has the written columns only: CREATE TEMPORARY VIEW v (key BINARY, value BINARY)"
            " USING liftlog OPTIONS (stream 'orders')",
            key=reads,
            nearest=None,
        )
    options = known(given, tuple(SINK_OPTIONS), what="the liftlog sink")
    of_kind(options, SINK_OPTIONS, kind, words=("write", "writeStream"))
    stream = stream_in(options, given, internal=False)
    subject, sink_id = options.get("subject"), options.get("sinkId")
    guarantee = one_of(options, "deliveryGuarantee", ("exactly-once", "at-least-once"))
    letters = options.get("deadLetterStream")
    with naming("deadLetterStream"):
        is_same = letters is not None and check_name(letters) == stream
    if letters is not None and is_same:
        raise invalid("deadLetterStream", letters, "must be another stream than the one that is written")
    app, version = options.get("txnAppId"), whole(options, "txnVersion", 0, OFFSET_MAX)
    if (app is None) != (version is None):
        missing = "txnVersion" if version is None else "txnAppId"
        raise InvalidSetting(
            f"option {missing} is missing: txnAppId and txnVersion name a transaction together", key=missing, value=None
        )
    if app is not None and not 0 < len(app) <= TXN_APP_ID_MAX:
        raise invalid("txnAppId", app, f"must be text of 1 to {TXN_APP_ID_MAX} characters")
    with naming("subject"):
        subject = None if subject is None else check_subject(subject, wildcards=False)
    with naming("sinkId"):
        sink_id = None if sink_id is None else check_name(sink_id, what="sink")
    is_exactly_once = guarantee == "exactly-once"
    for name in ("sinkId", "txnAppId", "onRepeatWithOtherRows", "onMissingBatches", "onNewDestination"):
        if name in options and not is_exactly_once:
            raise invalid(name, options[name], "means nothing with deliveryGuarantee=at-least-once")
    if "onNewDestination" in options and kind == "batch" and app is None:
        raise invalid(
            "onNewDestination", options["onNewDestination"], "means something for a batch write with txnAppId only"
        )
    return SinkOptions(
        brokers=brokers_in(options),
        stream=stream,
        subject=subject,
        partitioner=one_of(options, "partitioner", ("key", "roundRobin")),
        is_exactly_once=is_exactly_once,
        sink_id=sink_id,
        on_repeat="keep_first"
        if one_of(options, "onRepeatWithOtherRows", ("refuse", "keepFirst")) == "keepFirst"
        else "refuse",
        accepts_missing=one_of(options, "onMissingBatches", ("refuse", "accept")) == "accept",
        on_new_destination="accept"
        if one_of(options, "onNewDestination", ("refuse", "accept")) == "accept"
        else "refuse",
        txn_app_id=app,
        txn_version=version,
        dead_letter_stream=letters,
        delivery_timeout_s=(whole(options, "deliveryTimeoutMs", 1, TIMEOUT_MS_MAX) or TIMEOUT_MS) / 1000,
        checkpoint=checkpoint_place(
            next((value for name, value in given.items() if name.lower() == "checkpointlocation"), None)
        ),
    )


def checkpoint_place(location: str | None) -> str | None:
    """One text for one place. Without a scheme it is a place of Spark's default file system, which nobody tells us.

    So `/a` and `file:/a` are two places, also where they are one: that is refused (`sink_forked`), and can be adopted;
    the other way round a copy on another file system would not be noticed. A relative path stays one: what it is
    relative to is that file system's business, and on a cluster no two drivers begin in the same folder.

    Brokers take printable text only. So a character that is not (a no-break space, say) is written as in a URL, and the
    percent sign too, so that two places never become one.
    """
    if not location:
        return None
    location = "".join(c if c.isprintable() and c != "%" else _escaped(c) for c in location)
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return posixpath.normpath("/" + location.lstrip("/") if location.startswith("/") else location)
    if scheme == "file":
        return f"file:{posixpath.normpath('/' + rest.lstrip('/'))}"
    return f"{scheme}:{rest.rstrip('/')}"


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
