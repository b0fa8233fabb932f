"""Every error that liftlog raises, with one stable reason code each.

The type says what the caller can do; `reason` says what happened, the same in HTTP problem
bodies (`reason`), on the command line (`error[reason]`), in JetStream-shaped error answers and in
Spark (`LIFTLOG_` + the reason in capitals). Codes are never renamed or reused.

    LiftlogError
      Retryable                 nothing was done that would have to be undone; the same call may succeed later
        Unavailable             unavailable            nobody answers at the address
        DeadlineExceeded        deadline_exceeded      a time-out was reached, what was under way may be done
        RequestTimedOut         request_timed_out      it stopped half-way, nothing was done: `key` names the limit
        NotReady                not_ready              the broker is starting, draining or not connected
        NotLeader               not_leader             another broker leads the partition: `leader`
        NotEnoughReplicas       not_enough_replicas    too few are in sync; reads go on: `in_sync`, `no_room`
        DiskFull                disk_full              no space for the append; reads go on
        StorageFailed           storage_failed         a write or fsync failed; the partition recovers
        StreamPaused            stream_paused          the stream takes no records until it is resumed
        Overloaded              overloaded             a bounded queue is full
        LimitReached            limit_reached          one caller has as much as it may: `key`, `limit`, `caller`
        StagesFull              stages_full            too much is staged: `key` names the limit
      InvalidRequest            invalid_request        change the call; trying again does not help
        InvalidName             invalid_name           a stream or consumer name that cannot be one
        InvalidSubject          invalid_subject        a subject that cannot be captured
        InvalidSetting          invalid_setting        a setting out of its limits: `key`, `value`, `limit`
        UnknownSetting          unknown_setting        a key that does not exist: `key`, `nearest`
        InvalidRecords          invalid_records        records that are malformed or of another schema
        RecordTooLarge          record_too_large       one record over `limit` bytes
        RequestTooLarge         request_too_large      a body over `limit` bytes
        UnknownStream           unknown_stream         no such stream
        UnknownPartition        unknown_partition      no such partition: `partitions` says how many there are
        UnknownConsumer         unknown_consumer       no offsets are stored under this name
        StageLost               stage_lost             missing, incomplete or expired: stage anew, commit that
        UnknownSink             unknown_sink           nobody has opened a sink of this name
        SinkFenced              sink_fenced            another owner has committed since, or a reset: `epoch`
        SinkBatchRegressed      sink_batch_regressed   a batch id below the last decided one: `last_batch_id`
        SinkForked              sink_forked            the sink belongs to another checkpoint: `recorded`
        SinkRowsDiffer          sink_rows_differ       the batch was decided with other rows: `decided_rows`, `rows`
        SinkBatchesMissing      sink_batches_missing   the sink lacks batches that the commit follows: `last_batch_id`
        SinkDestinationNew      sink_destination_new   the stream was made anew since the sink wrote it: `stream`
        UnknownProducer         unknown_producer       never registered, or expired: register anew; nothing was appended
        ProducerFenced          producer_fenced        another has registered under its name since: `producer_epoch`
        WriterFenced            writer_fenced          another writer has fenced the partition; nothing was appended
        UnknownGroup            unknown_group          no consumer group of this name
        UnknownMember           unknown_member         it has left its group, or has expired: join again
        GroupFenced             group_fenced           the partition is another member's by now, or begun anew: `epoch`
        GroupInUse              group_in_use           it has members, and this needs that it has none
        OutOfSequence           out_of_sequence        a gap, or too old to tell if it was appended: `expected`
        StreamExists            stream_exists          exists with other settings: `differences`
        OffsetOutOfRange        offset_out_of_range    outside [log_start_offset, high_watermark]: both are fields
        StaleIncarnation        stale_incarnation      the stream was deleted and re-created: `incarnation`
        ExpectationFailed       expectation_failed     it would not get the offset that was expected, but `next_offset`
        NotSupported            not_supported          a feature that this release does not have
        ReadOnly                read_only              the stream accepts no records
        ForeignRequest          foreign_request        another site's page asks, or by a name that is not the broker's
        Unauthenticated         unauthenticated        the caller shows no valid certificate or token
        Unauthorized            unauthorized           the caller may not do this: `needs`
        UnknownToken            unknown_token          no such token: it was revoked, or never there
        PortInUse               port_in_use            another process listens there
        NatsRefused             nats_refused           the NATS server refused the connection or a subscription
      CorruptLog                corrupt_log            stored bytes are not what was written
        BadBatch                bad_batch              framing or CRC of a batch does not fit
        UnknownFormatVersion    unknown_format_version a later release wrote it
        WrongFolder             wrong_folder           the data folder belongs to something else
        FolderInUse             folder_in_use          another process has the data folder open
        FolderNotAllowed        folder_not_allowed     no permission for the data folder
      KeyMissing                key_missing            records are encrypted, and the key for them is not here
        WrongKeys              wrong_keys             a log's own files of keys are lost, or another log's
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final


class LiftlogError(Exception):
    """Base of the tree. `fields` are the facts behind the text; they survive pickling and HTTP.

    Attributes:
        reason: The stable code.
        status: The HTTP status that carries it.
        fields: JSON values, by name; also readable as attributes of the error.
    """

    reason: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str, /, **fields: Any) -> None:  # a field may be called message: others write problems
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)

    def __str__(self) -> str:
        return self.message

    def to_problem(self) -> dict[str, Any]:
        """The error as an RFC 9457 problem body."""
        return {
            **self.fields,
            "type": f"urn:liftlog:{self.reason}",
            "title": type(self).__name__,
            "status": self.status,
            "detail": self.message,
            "reason": self.reason,
        }


def _rebuild(cls: type[LiftlogError], message: str, fields: dict[str, Any]) -> LiftlogError:
    return cls(message, **fields)


class Retryable(LiftlogError):
    reason = "retryable"
    status = 503


class Unavailable(Retryable):
    reason = "unavailable"


class DeadlineExceeded(Retryable):
    reason = "deadline_exceeded"
    status = 504


class RequestTimedOut(Retryable):
    reason = "request_timed_out"
    status = 408


class NotReady(Retryable):
    reason = "not_ready"


class NotLeader(Retryable):
    reason = "not_leader"
    status = 421


class NotEnoughReplicas(Retryable):
    reason = "not_enough_replicas"


class DiskFull(Retryable):
    reason = "disk_full"
    status = 507


class StorageFailed(Retryable):
    reason = "storage_failed"


class StreamPaused(Retryable):
    reason = "stream_paused"


class Overloaded(Retryable):
    reason = "overloaded"
    status = 429


class LimitReached(Retryable):
    """This caller has as much as one may have. Others are not refused.

    Fields: `key` names the limit, `limit` is its value, `caller` for whom it is counted, `retry_after_s`.
    """

    reason = "limit_reached"
    status = 429


class StagesFull(Retryable):
    reason = "stages_full"
    status = 507


class InvalidRequest(LiftlogError):
    reason = "invalid_request"
    status = 400


class InvalidName(InvalidRequest):
    reason = "invalid_name"


class InvalidSubject(InvalidRequest):
    reason = "invalid_subject"


class InvalidSetting(InvalidRequest):
    reason = "invalid_setting"


class UnknownSetting(InvalidRequest):
    reason = "unknown_setting"


class InvalidRecords(InvalidRequest):
    reason = "invalid_records"


class RecordTooLarge(InvalidRequest):
    reason = "record_too_large"
    status = 413


class RequestTooLarge(InvalidRequest):
    reason = "request_too_large"
    status = 413


class UnknownStream(InvalidRequest):
    reason = "unknown_stream"
    status = 404


class UnknownPartition(InvalidRequest):
    reason = "unknown_partition"
    status = 404


class UnknownConsumer(InvalidRequest):
    reason = "unknown_consumer"
    status = 404


class StageLost(InvalidRequest):
    reason = "stage_lost"
    status = 409


class UnknownSink(InvalidRequest):
    reason = "unknown_sink"
    status = 404


class SinkFenced(InvalidRequest):
    reason = "sink_fenced"
    status = 409


class SinkBatchRegressed(InvalidRequest):
    reason = "sink_batch_regressed"
    status = 409


class SinkForked(InvalidRequest):
    reason = "sink_forked"
    status = 409


class SinkRowsDiffer(InvalidRequest):
    reason = "sink_rows_differ"
    status = 409


class SinkBatchesMissing(InvalidRequest):
    reason = "sink_batches_missing"
    status = 409


class SinkDestinationNew(InvalidRequest):
    reason = "sink_destination_new"
    status = 409


class UnknownProducer(InvalidRequest):
    reason = "unknown_producer"
    status = 404


class ProducerFenced(InvalidRequest):
    reason = "producer_fenced"
    status = 409


class WriterFenced(InvalidRequest):
    reason = "writer_fenced"
    status = 409


class UnknownGroup(InvalidRequest):
    reason = "unknown_group"
    status = 404


class UnknownMember(InvalidRequest):
    reason = "unknown_member"
    status = 404


class GroupFenced(InvalidRequest):
    reason = "group_fenced"
    status = 409


class GroupInUse(InvalidRequest):
    reason = "group_in_use"
    status = 409


class OutOfSequence(InvalidRequest):
    reason = "out_of_sequence"
    status = 409


class StreamExists(InvalidRequest):
    reason = "stream_exists"
    status = 409


class OffsetOutOfRange(InvalidRequest):
    reason = "offset_out_of_range"
    status = 416


class StaleIncarnation(InvalidRequest):
    reason = "stale_incarnation"
    status = 409


class ExpectationFailed(InvalidRequest):
    """Over NATS the broker answers with this reason, by a text of JetStream's (`broker.ingest.answers`)."""

    reason = "expectation_failed"
    status = 412


class NotSupported(InvalidRequest):
    reason = "not_supported"
    status = 501


class ReadOnly(InvalidRequest):
    reason = "read_only"
    status = 403


class ForeignRequest(InvalidRequest):
    reason = "foreign_request"
    status = 403


class Unauthenticated(InvalidRequest):
    """`why`, and what is wrong with a certificate (`certificate_faults`), are for the broker's log and audit. They are
    no fields: nobody else is told."""

    reason = "unauthenticated"
    status = 401
    why = ""
    certificate = ""


class Unauthorized(InvalidRequest):
    reason = "unauthorized"
    status = 403


class UnknownToken(InvalidRequest):
    reason = "unknown_token"
    status = 404


class PortInUse(InvalidRequest):
    reason = "port_in_use"


class NatsRefused(InvalidRequest):
    reason = "nats_refused"
    status = 502


class CorruptLog(LiftlogError):
    reason = "corrupt_log"


class BadBatch(CorruptLog):
    reason = "bad_batch"


class UnknownFormatVersion(CorruptLog):
    reason = "unknown_format_version"


class WrongFolder(CorruptLog):
    reason = "wrong_folder"


class FolderInUse(CorruptLog):
    reason = "folder_in_use"


class FolderNotAllowed(CorruptLog):
    reason = "folder_not_allowed"


class KeyMissing(LiftlogError):
    reason = "key_missing"


class WrongKeys(KeyMissing):
    reason = "wrong_keys"


def _tree(cls: type[LiftlogError]) -> dict[str, type[LiftlogError]]:
    found = {cls.reason: cls}
    for child in cls.__subclasses__():
        found.update(_tree(child))
    return found


BY_REASON: Final = _tree(LiftlogError)
"""Every error type by its reason code."""


def may_be_done(error: LiftlogError) -> bool:
    """Whether what was asked for may have been carried out although it failed.

    A broker that ran out of time, or met a fault of its own, may have done so after it carried it out.
    """
    is_definite = isinstance(error, Retryable | InvalidRequest) and not isinstance(error, DeadlineExceeded)
    return not is_definite or bool(error.fields.get("sent"))


@contextmanager
def partly(begun: bool) -> Iterator[None]:
    """Where some of a change was `begun`, an error of the rest says so: `sent`."""
    try:
        yield
    except LiftlogError as error:
        if begun:
            error.fields["sent"] = True
        raise


def forget_frames(error: BaseException) -> None:
    """Have an error that is answered refer to nothing that it was met with.

    It has the frames that it came through, as have those that it came from. One of them has what was awaited, and that
    has the error. So a body of 64 MiB that was refused would stay in memory until the next search for cycles.
    """
    left: list[BaseException | None] = [error]
    known = set[int]()
    while left:
        each = left.pop()
        if each is not None and id(each) not in known:
            known.add(id(each))
            each.__traceback__ = None
            left += [each.__cause__, each.__context__]


_PROBLEM_KEYS: Final = frozenset({"type", "title", "status", "detail", "reason"})


def from_problem(problem: dict[str, Any]) -> LiftlogError:
    """The error that a problem body stands for; an unknown reason gives the base class."""
    cls = BY_REASON.get(str(problem.get("reason")), LiftlogError)
    fields = {str(k): v for k, v in problem.items() if k not in _PROBLEM_KEYS}
    return cls(str(problem.get("detail") or problem.get("title") or "no detail given"), **fields)
