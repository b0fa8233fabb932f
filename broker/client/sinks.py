"""Exactly-once sinks: records that become visible batch by batch, each once, whatever is repeated or dies.

    sink = client.sink("my-query")
    sink.open()                                        # a run of its own; fences nobody yet
    stages = [sink.stage(batches, "orders", 0),        # anywhere, by anybody who knows the epoch
              sink.stage(others, "orders", 1)]
    sink.commit(17, stages)                            # "committed"; repeated: "already_done"

A run is known by its *owner*, any text that no other run has, and gets an epoch for it: the same one however often
and wherever it opens. The first commit of a run fences all runs before it, and drops what they had staged.

A stage is named by 128 random bits for each call of `stage`, so a task that is tried again makes another one, and a
commit names the ones it means. Stages that no commit names are dropped by `abort`, or go after a day; and before, when
others need the room and their run is silent. An open sink says once in some seconds that its run lives.

A commit that met an error may have been decided: commit the same batch id again, with the same stages or with new
ones. The answer `already_done` describes what was decided first. Protocol: docs/explain/sinks.md.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlencode

from broker.api.errors import InvalidRequest, UnknownSink
from broker.api.sink_answers import (
    BundleStaged,
    SinkAborted,
    SinkCommitted,
    SinkDescription,
    SinkOpened,
    SinkRenewed,
    Stage,
    Staged,
)
from broker.api.stream import COMMITS_STREAM
from broker.client.http.address import Address
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls, path, understand
from broker.client.http.interrupt import Interrupt
from broker.client.http.pool import Request
from broker.client.renewing import keep_renewing

if TYPE_CHECKING:  # what only looks at sinks needs no Arrow
    import pyarrow as pa

    from broker.client.writing.records import Records

PART_BYTES: Final = 16 << 20
"""About how much goes into one request. The broker takes 64 MiB unless it is told otherwise."""
PARTS_IN_FLIGHT: Final = 2
RENEW_TIMEOUT_S: Final = 5.0
COMMITS: Final = (COMMITS_STREAM, 0)
"""Its leader decides for all sinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The answer to a commit. `sink.last` is the decision for its batch id."""

    outcome: Literal["committed", "already_done"]
    sink: SinkDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledPart:
    """A part of a stage in a bundle."""

    partition: int
    stage: str
    part: int
    is_last: bool
    rows: int

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "stage": self.stage,
            "part": self.part,
            "last": self.is_last,
            "rows": self.rows,
        }


class Sink:
    """One sink, as one run writes to it. Made by `Client.sink`; thread-safe but for `open` and `reset`.

    Args:
        owner: Name of the run. None: a random one, so this object is a run of its own.
        epoch: The epoch that `open` gave, for tasks that stage for a driver elsewhere.
    """

    def __init__(self, calls: Calls, sink: str, *, owner: str | None = None, epoch: int | None = None) -> None:
        self.sink = sink
        self.owner = owner or uuid.uuid4().hex
        self.epoch = epoch
        self.renew_ms = 0
        self._is_named = owner is not None
        self._calls = calls

    def open(self, *, one_shot: bool = False, is_kept: bool = True) -> SinkDescription:
        """Get this run's epoch of the sink, which is made if need be. The same owner gets the same epoch again.

        This fences no other run: the first commit does that.

        Args:
            one_shot: If this call makes the sink, the sink is for one batch, and vanishes some time after that is done.
            is_kept: From now on a thread says once in some seconds that this run lives, as long as this object is
                there and its client is not closed. What a run that is silent for `sinks.owner_silent_ms` has staged
                goes when others need the room.
        Raises:
            SinkFenced: another run has committed since this one opened the sink.
            InvalidName: the name is not allowed.
        """
        body = {"owner": self.owner, "one_shot": one_shot}
        value = self._calls.json("POST", path("sinks", self.sink, "open"), body, key=COMMITS)
        opened = understand(SinkOpened, value, where=f"opening sink {self.sink}")
        self.epoch, self.renew_ms = opened.epoch, opened.renew_ms
        if is_kept:
            keep_renewing(self, self.renew_ms)
        return self._sink(value)

    @property
    def brokers(self) -> Brokers:
        """The connections that it uses."""
        return self._calls.brokers

    @property
    def run(self) -> tuple[str, str, str]:
        """Brokers, sink and owner."""
        return str(self._calls.brokers), self.sink, self.owner

    def renew(self) -> int:
        """Say that this run lives. Returns when to say so again, in ms. An open sink does so by itself.

        Raises:
            UnknownSink, SinkFenced: it is over. Retryable: not told; tried once.
        """
        calls = Calls(self._calls.brokers, timeout_s=RENEW_TIMEOUT_S, deadline_s=0)
        value = calls.json("POST", path("sinks", self.sink, "renew"), {"owner": self.owner}, key=COMMITS)
        return understand(SinkRenewed, value, where=f"renewing sink {self.sink}").renew_ms

    def stage(
        self,
        records: Records,
        stream: str,
        partition: int,
        *,
        stage: str | None = None,
        incarnation: str | None = None,
    ) -> Stage:
        """Store records for a later commit; durable when it returns. Columns as for `Client.append`.

        Args:
            records: Any number, also none, in any form that `Client.append` takes. Sent in parts of some 16 MiB, as
                they come, two at a time.
            stage: 32 hexadecimal digits that no other stage has; None: random ones.
            incarnation: The stream's incarnation that is meant.
        Raises:
            StageLost: it expired or was dropped while it was sent: stage anew.
            SinkFenced: another run has committed since this one opened the sink. UnknownSink: it was deleted.
            RequestTooLarge: more than one commit may add to a partition (`sinks.group_bytes_max`).
            StagesFull, DiskFull and others that are Retryable: it stayed so until the deadline.
            UnknownStream, UnknownPartition, InvalidRecords, RecordTooLarge, ReadOnly: as they say.
        """
        sending = _Sending(self, stream, partition, stage or uuid.uuid4().hex, incarnation)
        with sending:
            held: list[pa.RecordBatch] = []
            schema = None
            for piece in _pieces(records):
                schema = piece.schema
                if held and sum(batch.nbytes for batch in held) + piece.nbytes > PART_BYTES:
                    sending.part(held)
                    held = []
                held.append(piece)
            sending.last_part(held or [_nothing(schema)])
        return Stage(stream=stream, partition=partition, stage=sending.stage, parts=sending.parts, rows=sending.rows)

    def commit(
        self,
        batch_id: int,
        stages: Iterable[Stage],
        *,
        digest: str = "",
        follows: int | None = None,
        attributes: Mapping[str, str] | None = None,
        on_repeat_with_other_rows: Literal["refuse", "keep_first"] = "refuse",
        on_new_destination: Literal["refuse", "accept"] = "refuse",
    ) -> Committed:
        """Make the records of these stages one batch. When it returns, all of them are visible, once.

        Args:
            batch_id: Greater than the last one; or the last one again, which then is completed as it was decided first.
            digest: Digest of the rows, whatever their place and order; "": none. A repetition with another digest has
                other rows. The text before the last ":" says how it was made; two kinds are not compared.
            follows: A batch that is known to be written. The commit is refused if the sink has not come so far.
            attributes: Kept with the decision. With `checkpoint`, the commits of another checkpoint are refused.
            on_repeat_with_other_rows: Applies if this batch id was decided with another number of rows or another
                digest. `refuse` raises SinkRowsDiffer; `keep_first` drops these and answers `already_done`.
            on_new_destination: Applies if a stream of the stages was deleted and made anew since the sink wrote it.
                `refuse` raises SinkDestinationNew; `accept` goes on without what was written before.
        Raises:
            StageLost: nothing was decided. Stage the records anew and commit them under the same batch id.
            SinkFenced: another run has committed since, or the sink was reset.
            SinkRowsDiffer: this batch id was decided with other rows: fields `rows`, `decided_rows`, `digest`,
                `decided_digest`.
            SinkBatchesMissing: the sink's last batch, field `last_batch_id`, is below `follows`: its broker was
                restored from an older copy, or it is another sink.
            SinkDestinationNew: what the sink wrote to `stream` is gone, until the batch `last_batch_id`.
            SinkBatchRegressed: the batch id is below the last one: field `last_batch_id`; `reset` is the way on.
            SinkForked: the attribute `checkpoint` is another one: fields `recorded`, `asked`.
            Unavailable and others that are Retryable: not known; commit the same batch id again.
        """
        named = list(stages)
        body = {
            "owner": self.owner,
            "epoch": self._known_epoch(),
            "batch_id": batch_id,
            "stages": [stage.as_json() for stage in named],
            "rows": sum(stage.rows for stage in named),
            "digest": digest,
            **({} if follows is None else {"follows": follows}),
            "attributes": dict(attributes or {}),
            "on_repeat_with_other_rows": on_repeat_with_other_rows,
            **({} if on_new_destination == "refuse" else {"on_new_destination": on_new_destination}),
        }
        value = self._calls.json(
            "POST", path("sinks", self.sink, "commit"), body, wait_s=self._calls.deadline_s, key=COMMITS
        )
        found = understand(SinkCommitted, value, where=f"committing {self.sink}")
        return Committed(outcome=found.outcome, sink=self._sink(value))

    def abort(self, stages: Iterable[Stage]) -> int:
        """Drop stages; those that a commit has named are left alone. Returns how many went."""
        named = [{k: v for k, v in stage.as_json().items() if k != "parts"} for stage in stages]
        value = self._calls.json("POST", path("sinks", self.sink, "abort"), {"stages": named}, key=COMMITS)
        return understand(SinkAborted, value, where=f"aborting stages of {self.sink}").dropped

    def end(self) -> None:
        """End a one-shot sink that no other run has opened, and drop what is staged for it, also what a commit that was
        refused has named. What was committed stays.

        Tasks of this run that come later are refused (SinkFenced), also where none of them had opened the sink yet. It
        vanishes after `sinks.one_shot_grace_ms`. It needs no more than the right to write the sink; `delete` needs
        `sink:admin`.

        Raises:
            InvalidRequest: the sink is not for one batch; or the broker is of an earlier release (field `path`).
            SinkFenced: others have opened it, too.
        """
        self._calls.json("POST", path("sinks", self.sink, "end"), {"owner": self.owner}, key=COMMITS)

    def describe(self) -> SinkDescription:
        """The sink as it is. Raises UnknownSink."""
        return self._sink(self._calls.json("GET", path("sinks", self.sink), key=COMMITS))

    def reset(self, next_batch_id: int) -> SinkDescription:
        """Go on with any batch id, because a checkpoint was rolled back or replaced. Ends every run so far.

        Committed records stay: if a batch is written again, its records are stored twice. If the owner was not
        given, this object is a new run afterwards: open it.

        Raises:
            UnknownSink: nobody opened it.
        """
        body = {"next_batch_id": next_batch_id}
        found = self._sink(self._calls.json("POST", path("sinks", self.sink, "reset"), body, key=COMMITS))
        if not self._is_named:
            self.owner, self.epoch = uuid.uuid4().hex, None
        return found

    def adopt(self, checkpoint: str) -> SinkDescription:
        """Give the sink to another checkpoint, because it was moved. Earlier decisions stay and count.

        Raises:
            UnknownSink: nobody opened it.
        """
        return self._sink(
            self._calls.json("POST", path("sinks", self.sink, "adopt"), {"checkpoint": checkpoint}, key=COMMITS)
        )

    def delete(self, *, missing_ok: bool = False) -> bool:
        """Forget the sink, and drop what is staged for it. Committed records stay. Returns whether it was there.

        A query that repeats its last batch afterwards writes it twice.

        Args:
            missing_ok: No error if there is no such sink.
        Raises:
            UnknownSink: nobody opened it.
            NotReady, or why: its last decision is not complete in every partition yet.
        """
        try:
            self._calls.json("DELETE", path("sinks", self.sink), done_if=UnknownSink, key=COMMITS)
        except UnknownSink:
            if not missing_ok:
                raise
            return False
        return True

    def send_part(
        self,
        batches: list[pa.RecordBatch],
        stream: str,
        partition: int,
        stage: str,
        part: int,
        *,
        is_last: bool,
        incarnation: str | None,
        interrupt: Interrupt | None = None,
    ) -> int:
        """Store one part of a stage; returns its rows. The same part again is stored once."""
        from broker.client.writing.append import ARROW_HEADERS, TIMEOUT_S, encode

        query: dict[str, Any] = {
            "sink": self.sink,
            "epoch": self._known_epoch(),
            "stage": stage,
            "part": part,
            "last": "true" if is_last else "false",
        }
        if incarnation is not None:
            query["incarnation"] = incarnation
        request = Request(
            method="POST",
            target=f"{path('streams', stream, 'partitions', partition, 'stages')}?{urlencode(query)}",
            body=encode(batches),
            headers=ARROW_HEADERS,
            timeout_s=max(self._calls.timeout_s, TIMEOUT_S),
            interrupt=interrupt,
        )
        value = self._calls.send(request, key=(stream, partition))
        return understand(Staged, value, where=f"staging to {stream}/{partition}").record_count

    def asked_first(self, stream: str, partition: int) -> Address:
        """The broker that is asked first about a partition: its leader, if that is known."""
        return self._calls.brokers.candidates((stream, partition))[0]

    def send_bundle(
        self,
        parts: Sequence[BundledPart],
        batches: list[pa.RecordBatch],
        stream: str,
        *,
        incarnation: str | None,
        interrupt: Interrupt | None = None,
    ) -> tuple[int, ...] | None:
        """Store parts of stages of several partitions in one request to the broker that leads the first one.

        A power cut of a broker that is alone may take them, before their commit: that raises StageLost then.

        Args:
            batches: The rows of all parts, in their order.
        Returns:
            The partitions that are led elsewhere, whose parts are not stored; None: brokers take no bundles yet.
        """
        from broker.client.writing.append import BUNDLE_HEADERS, TIMEOUT_S, bundled

        head, body = bundled([part.as_json() for part in parts], batches)
        query: dict[str, Any] = {"sink": self.sink, "epoch": self._known_epoch(), "head": head}
        if incarnation is not None:
            query["incarnation"] = incarnation
        request = Request(
            method="POST",
            target=f"{path('streams', stream, 'stages')}?{urlencode(query)}",
            body=body,
            headers=BUNDLE_HEADERS,
            timeout_s=max(self._calls.timeout_s, TIMEOUT_S),
            interrupt=interrupt,
        )
        try:
            value = self._calls.send(request, key=(stream, parts[0].partition))
        except InvalidRequest as error:
            if "path" in error.fields:  # of an older release
                return None
            raise
        return understand(BundleStaged, value, where=f"staging to {stream}").elsewhere

    def _known_epoch(self) -> int:
        if self.epoch is None:
            raise InvalidRequest(f"sink {self.sink!r} is not open: call open(), or give its epoch")
        return self.epoch

    def _sink(self, value: Any) -> SinkDescription:
        return understand(SinkDescription, value, where=f"describing sink {self.sink}")


class _Sending:
    """The parts of one stage on their way, `PARTS_IN_FLIGHT` at a time: one is received while another is synced."""

    def __init__(self, sink: Sink, stream: str, partition: int, stage: str, incarnation: str | None) -> None:
        self.stage = stage
        self.parts = 0
        self.rows = 0
        self._send = partial(sink.send_part, stream=stream, partition=partition, stage=stage, incarnation=incarnation)
        self._threads = ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="stage")  # starts them when needed
        self._under_way: deque[Future[int]] = deque()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def part(self, batches: list[pa.RecordBatch]) -> None:
        """One that is not the last; raises what sending an earlier one met."""
        self._make_room()
        self._under_way.append(self._threads.submit(self._send, batches, part=self.parts, is_last=False))
        self.parts += 1

    def last_part(self, batches: list[pa.RecordBatch]) -> None:
        """The last one; returns when all are stored."""
        self._make_room()
        self.rows += self._send(batches, part=self.parts, is_last=True)
        self.parts += 1
        while self._under_way:
            self._take()

    def _make_room(self) -> None:
        if len(self._under_way) == PARTS_IN_FLIGHT:
            self._take()

    def _take(self) -> None:
        self.rows += self._under_way.popleft().result()


def _pieces(records: Records) -> Iterable[pa.RecordBatch]:
    """The rows in pieces that fit into a part."""
    from broker.client.writing.outgoing import pieces
    from broker.client.writing.records import record_batches

    for batch in record_batches(records):
        yield from pieces(batch, PART_BYTES)


def _nothing(schema: pa.Schema | None) -> pa.RecordBatch:
    import pyarrow as pa

    columns = schema or pa.schema([("value", pa.binary())])
    return pa.RecordBatch.from_pylist([], schema=columns)
