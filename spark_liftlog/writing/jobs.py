"""Batch writes, exactly once: a sink for one job, or for the transactions of one application.

    job           sink spark-job-<uuid>, for one batch, made with the writer: every task and retry has the same
    transaction   sink spark-txn-<hash of stream and txnAppId>, its batch ids are the user's txnVersions (Delta's names)

A job without rows is committed, too: its tasks have opened the sink, which vanishes an hour after its batch, and only
after a day if there is none. A query that writes an empty frame in each batch would fill the brokers.

A job that is run again appends again: nothing tells it from another one. With txnAppId and txnVersion it does not: a
version that was written, or is below one that was, is skipped with a warning; and refused, if the stream was deleted
and made anew since.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from broker.api.errors import (
    LiftlogError,
    SinkBatchRegressed,
    SinkDestinationNew,
    SinkFenced,
    StageLost,
    UnknownSink,
)
from broker.api.sink_answers import Stage
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from broker.client.sinks import Sink
from spark_liftlog.errors import advised
from spark_liftlog.writing.run import TIMEOUT_S, Run, agreed, all_written, digest_of_all, opened, sink_of
from spark_liftlog.writing.sink_options import SinkOptions
from spark_liftlog.writing.targets import find

log = logging.getLogger("spark_liftlog")


@dataclass(frozen=True, slots=True)
class Job:
    """One `df.write`.

    Attributes:
        version: The txnVersion; None: no transaction is named.
        stream: Where a transaction goes.
    """

    run: Run
    version: int | None
    stream: str | None = None
    on_new_destination: Literal["refuse", "accept"] = "refuse"

    @classmethod
    def of(cls, options: SinkOptions) -> Job:
        """A new job."""
        owner = uuid.uuid4().hex
        if options.txn_app_id is None:
            return cls(Run(sink=f"spark-job-{owner}", owner=owner, one_shot=True), None)
        named = f"{options.stream or ''}\0{options.txn_app_id}".encode()
        run = Run(sink=f"spark-txn-{hashlib.sha256(named).hexdigest()[:40]}", owner=owner)
        return cls(run, options.txn_version, options.stream, options.on_new_destination)

    def is_done(self, brokers: Brokers, deadline_s: float) -> bool:
        """Whether the transaction was written before, so that nothing need be staged.

        Raises:
            SinkDestinationNew: and its stream was deleted and made anew since.
        """
        if self.version is None:
            return False
        sink = sink_of(brokers, self.run, deadline_s)
        try:
            return self._is_past(sink, self.version, brokers, deadline_s)
        except UnknownSink:
            return False

    def commit(self, messages: Sequence[Any], brokers: Brokers, deadline_s: float) -> None:
        """Make what the tasks staged visible, once.

        Raises:
            LiftlogError: it is not, or nobody knows: the text then says so. A job without a transaction must not simply
                be run again then.
        """
        try:
            self._commit(messages, brokers, deadline_s)
        except LiftlogError as error:
            if self.version is not None or not error.fields.get("sent"):
                raise advised(error) from error
            text = f"{error}; the rows may have been written all the same: look before you run the job again"
            raise type(error)(text, **error.fields) from error

    def _commit(self, messages: Sequence[Any], brokers: Brokers, deadline_s: float) -> None:
        written = all_written(messages)
        stages = [stage for message in written for stage in message.stages]
        if self.version is None and not written:
            return
        if any(message.is_skipped for message in written):
            # Another job wrote this version meanwhile: the rest of the rows is not there, so nothing may be decided.
            sink = opened(brokers, self.run, deadline_s)
            if self.version is None or not self._is_past(sink, self.version, brokers, deadline_s):
                raise StageLost(f"sink {self.run.sink!r} was reset while transaction {self.version} was written")
            self._skip(sink, stages)
            return
        known = agreed(written)
        sink = (
            opened(brokers, self.run, deadline_s) if known is None else sink_of(brokers, self.run, deadline_s, known[1])
        )
        try:
            done = sink.commit(
                self.version or 0,
                stages,
                digest=digest_of_all(written),
                on_repeat_with_other_rows="refuse" if self.version is None else "keep_first",
                on_new_destination=self.on_new_destination,
            )
        except (SinkBatchRegressed, SinkFenced):
            # If another job of the application has committed this version or a later one, all is well. The sink may
            # have been reset instead: then nobody has written these rows.
            if self.version is None or not self._is_past(sink, self.version, brokers, deadline_s):
                raise
        else:
            if self.version is None or done.outcome == "committed":
                return
        self._skip(sink, stages)

    def _skip(self, sink: Sink, stages: list[Stage]) -> None:
        if stages:
            sink.abort(stages)
        log.warning("sink.skipped sink=%s txn_version=%d note=written before", self.run.sink, self.version)

    def _is_past(self, sink: Sink, version: int, brokers: Brokers, deadline_s: float) -> bool:
        found = sink.describe()
        last, stream = found.last, self.stream
        if last is None or not (last.batch_id > version or (last.batch_id == version and last.complete)):
            return False
        incarnation = (found.destinations or {}).get(stream or "")
        if stream is None or incarnation is None or self.on_new_destination == "accept":
            return True
        if find(Calls(brokers, timeout_s=TIMEOUT_S, deadline_s=deadline_s), stream).incarnation != incarnation:
            raise SinkDestinationNew(
                f"sink {sink.sink!r}: transaction {version} was written to stream {stream!r}, which was deleted and"
                f" made anew since. What the sink wrote there up to its last transaction {last.batch_id} is gone. Reset"
                f" the sink to {version} to write this one again; or skip it",
                sink=sink.sink,
                stream=stream,
                incarnation=incarnation,
                batch_id=version,
                last_batch_id=last.batch_id,
            )
        return True
