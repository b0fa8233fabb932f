"""The sink, as Spark asks for it: rows of a frame become records of streams.

    streaming, exactly-once     tasks stage; the commit of a micro-batch names its stages, its sink and its number
    batch, exactly-once         the same with a sink for this job alone, or for a transaction that the user names
    at-least-once               tasks append, and what they appended can be read at once; nothing can be taken back

A micro-batch comes again after a crash, with the same number and its rows placed otherwise; a task comes again after a
failure, or twice at once. Each makes its own stages, and one commit decides which count (docs/explain/sinks.md).

K5  The first decision on a batch id stands: the broker drops repeated stages and refuses other rows (digest.py
    tells them from the same rows in other places).
K6  Nothing that a log cannot honour is tried: overwriting, complete mode.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.api.errors import InvalidSetting, LiftlogError
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from broker.client.renewing import renewing
from broker.client.writing.append import AppendCalls
from spark_liftlog.errors import ModeRefused, advised, shown_to_spark
from spark_liftlog.reading.asking_again import AskingAgain
from spark_liftlog.reading.task import session
from spark_liftlog.writing.digest import as_text
from spark_liftlog.writing.gathering import gathered
from spark_liftlog.writing.jobs import Job
from spark_liftlog.writing.outlets import Appending, Staging
from spark_liftlog.writing.router import Router
from spark_liftlog.writing.rows import columns_of
from spark_liftlog.writing.run import (
    TIMEOUT_S,
    Run,
    Written,
    abort,
    agreed,
    all_written,
    batch_name,
    digest_of_all,
    forget,
    give_up,
    is_stale,
    opened,
    sink_of,
    streaming_run,
    task_number,
)
from spark_liftlog.writing.sink_options import SinkOptions
from spark_liftlog.writing.targets import Targets
from spark_liftlog.writing.targets import forget as forget_targets

log = logging.getLogger("spark_liftlog")


class LiftlogWriter(DataSourceArrowWriter):
    """`df.write`: one job. Made once; the same object, pickled, is in every task and in the commit.

    Args:
        options: Checked options.
        schema: The frame's.
        overwrite: Refused.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ModeRefused('a stream is appended to, never overwritten: use .mode("append")', mode="overwrite")
        self._options = options
        self._columns = checked_columns(schema, options)
        self._job = Job.of(options) if options.is_exactly_once else None
        self._name = uuid.uuid4().hex

    @shown_to_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        job = self._job
        try:
            is_done = job is not None and job.is_done(brokers_of(self._options), self._options.delivery_timeout_s)
        except LiftlogError as error:
            raise advised(error) from error
        if job is not None and is_done:
            return Written(task=task_number(), row_count=0, run=job.run, is_skipped=True)
        return write_task(iterator, self._columns, self._options, None if job is None else job.run, self._name)

    @shown_to_spark
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._job is None:
            agreed(all_written(messages))
        else:
            self._job.commit(messages, brokers_of(self._options), self._options.delivery_timeout_s)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_tasks(messages, self._options, "")
        if self._job is not None and self._job.run.one_shot:
            try:
                give_up(brokers_of(self._options), self._job.run)
            except LiftlogError as error:
                log.warning("sink.abort_failed note=the rest expires with its lease error=%s", error)


class LiftlogStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: one micro-batch. Arguments as `LiftlogWriter`."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ModeRefused(
                'output mode complete would append the whole result again at every trigger: use .outputMode("append")',
                mode="complete",
            )
        self._options = options
        self._columns = checked_columns(schema, options)

    @shown_to_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        options = self._options
        run = streaming_run(options.sink_id, options.checkpoint) if options.is_exactly_once else None
        try:
            return write_task(iterator, self._columns, self._options, run, batch_name())
        except LiftlogError as error:
            raise advised(error) from error

    @shown_to_spark
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        written = all_written(messages)
        known = agreed(written)
        if known is None:
            return
        run, epoch = known
        sink = sink_of(brokers_of(self._options), run, self._options.delivery_timeout_s, epoch)
        digest = digest_of_all(written)
        try:
            done = sink.commit(
                batchId,
                [stage for message in written for stage in message.stages],
                digest=digest,
                attributes={} if run.checkpoint is None else {"checkpoint": run.checkpoint},
                follows=None if batchId == 0 or self._options.accepts_missing else batchId - 1,
                on_repeat_with_other_rows=self._options.on_repeat,
                on_new_destination=self._options.on_new_destination,
            )
        except LiftlogError as error:
            raise advised(error) from error
        if done.outcome == "already_done":
            last = done.sink.last
            rows, decided = sum(message.row_count for message in written), 0 if last is None else last.rows
            is_same = last is not None and (last.rows, last.digest) == (rows, digest)
            text = "sink.repeated sink=%s batch_id=%d rows=%d decided_rows=%d is_same=%s"
            log.warning(text, run.sink, batchId, rows, decided, is_same)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        abort_tasks(messages, self._options, f" batch_id={batchId}")


def checked_columns(schema: StructType, options: SinkOptions) -> dict[str, int]:
    """Where the record columns are.

    Raises:
        InvalidRecords: as `columns_of`.
        InvalidSetting: an option and a column that say the same, or neither names a stream.
    """
    columns = columns_of(schema)
    for name, value in (("stream", options.stream), ("subject", options.subject)):
        if value is not None and name in columns:
            raise InvalidSetting(
                f"option {name}={value!r}: the frame has a column {name!r}, too, which says it row by row: drop one of"
                " them",
                key=name,
                value=value,
            )
    if options.txn_app_id is not None and options.stream is None:
        raise InvalidSetting(
            f"option txnAppId={options.txn_app_id!r}: a transaction is known by the option stream and by txnAppId, and"
            " here a column names the streams: two frames of one version would be taken for one. Write each stream by"
            ' itself, with .option("stream", …)',
            key="txnAppId",
            value=options.txn_app_id,
        )
    if options.stream is None and "stream" not in columns:
        raise InvalidSetting(
            'no stream is named: .option("stream", "orders"), or a column stream in the frame', key="stream", value=None
        )
    return columns


def brokers_of(options: SinkOptions) -> Brokers:
    """This process's connections to a cluster."""
    return session(options.brokers).brokers


def write_task(
    batches: Iterable[pa.RecordBatch], columns: dict[str, int], options: SinkOptions, run: Run | None, job: str
) -> Written:
    """Write the rows of one task.

    Args:
        run: For whom they are staged; None: they are appended.
        job: Names the job or micro-batch that the task belongs to; empty: nobody knows.
    Raises:
        LiftlogError: not all of them were written; appended ones stay, staged ones will not be seen.
    """
    brokers = brokers_of(options)
    outlet: Appending | Staging | None = None
    lasting = ExitStack()
    try:
        task = task_number()
        calls = Calls(brokers, timeout_s=TIMEOUT_S, deadline_s=options.delivery_timeout_s)
        epoch = 0
        if run is None:
            outlet = Appending(AppendCalls(brokers, timeout_s=TIMEOUT_S, deadline_s=options.delivery_timeout_s))
        else:
            sink = opened(brokers, run, options.delivery_timeout_s)
            epoch = sink.epoch or 0
            outlet = Staging(sink, functools.partial(abort, brokers, run))
            lasting.enter_context(renewing(sink, sink.renew_ms))
        targets = Targets(calls, job, AskingAgain(brokers).again)
        router = Router(columns, options, targets.find, outlet, task, again=targets.again)
        router.check()
        for batch in gathered(batches):
            router.add(batch)
        stages = outlet.finish()
    except BaseException as error:
        forget_targets(brokers, job)
        if outlet is not None:
            outlet.discard()
        if run is not None and isinstance(error, LiftlogError) and is_stale(error):
            forget(brokers, run)
        raise
    finally:
        lasting.close()
    if router.bad_count:
        log.warning("sink.dead_letters task=%d rows=%d stream=%s", task, router.bad_count, options.dead_letter_stream)
    return Written(
        task=task,
        row_count=router.row_count,
        run=run,
        epoch=epoch,
        stages=stages or (),
        incarnations=router.incarnations,
        digest=as_text(router.digest),
    )


def abort_tasks(messages: Sequence[WriterCommitMessage | None], options: SinkOptions, what: str) -> None:
    """Drop what tasks staged; never raises. The broker spares stages that a commit has named."""
    written = [message for message in messages if isinstance(message, Written)]
    staged = [message for message in written if message.run is not None]
    appended = sum(message.row_count for message in written if message.run is None)
    stages = [stage for message in staged for stage in message.stages]
    if stages and (run := staged[0].run) is not None:
        try:
            abort(brokers_of(options), run, stages)
        except LiftlogError as error:
            log.warning("sink.abort_failed%s note=the stages expire with their lease error=%s", what, error)
    note = "appended rows stay in the stream" if appended else "nothing of it can be read"
    log.warning("sink.aborted%s rows_appended=%d stages=%d note=%s", what, appended, len(stages), note)
