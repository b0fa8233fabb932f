"""The writer: a sink, the run of it, its checkpoint. Told by Spark to a task, and by the tasks to the driver.

Spark makes a stream's writer anew for every micro-batch, in a process that knows neither query nor run. Tasks do: they
find both among the local properties of their job. So a task opens the sink for its run, which is the same however
often it is done, and tells the driver what it opened.

    sink     option sinkId, else the query's id: the same over restarts, kept in the checkpoint
    owner    the run's id: another one after each start
    epoch    of the sink, given by the broker to the owner

M1  A run commits under one epoch. If its tasks were given different ones, the sink was deleted or reset in between.
M2  A commit has what every task wrote. One that lacks a task's message would decide the batch without its rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from broker.api.errors import (
    InvalidRequest,
    LiftlogError,
    NotSupported,
    SinkFenced,
    StageLost,
    StaleIncarnation,
    UnknownSink,
)
from broker.api.sink_answers import Stage
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from broker.client.sinks import Sink
from spark_liftlog.reading.pinning import batch_here
from spark_liftlog.writing.digest import summed

QUERY_ID: Final = "sql.streaming.queryId"
RUN_ID: Final = "spark.jobGroup.id"
"""Spark's job group of a micro-batch's job is the run."""
EPOCHS_MAX: Final = 256
TIMEOUT_S: Final = 30.0
ABORT_S: Final = 5.0
"""Stages that an abort does not reach go with their lease, or with the next run's commit."""

log = logging.getLogger("spark_liftlog")

_epochs: dict[tuple[str, str, str], tuple[int, int]] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a sink.

    Attributes:
        checkpoint: Where the query keeps what it has done, and the query's id; None for a batch write.
        one_shot: The sink is for one batch.
    """

    sink: str
    owner: str
    checkpoint: str | None = None
    one_shot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(WriterCommitMessage):
    """The writes of one task: with a run what it staged, without one what it appended.

    Attributes:
        row_count: Rows that came in; each is in a stage, or appended.
        incarnations: Those of the streams that it met.
        digest: The digest of the rows, with the name of its algorithm.
        is_skipped: The transaction was done before, nothing was staged.
    """

    task: int
    row_count: int
    run: Run | None = None
    epoch: int = 0
    stages: tuple[Stage, ...] = ()
    incarnations: Mapping[str, str] | None = None
    digest: str = ""
    is_skipped: bool = False


def streaming_run(sink_id: str | None, checkpoint: str | None) -> Run:
    """The run that this task belongs to.

    Args:
        sink_id: The option.
        checkpoint: The place of the checkpoint; None where it comes from the session.
    Raises:
        NotSupported: Spark does not say.
    """
    context = TaskContext.get()
    query, run = (None if context is None else context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID))
    if not query or not run:
        raise NotSupported(
            "Spark does not tell this task which streaming query and run it belongs to, without which rows cannot be"
            " written exactly once: set the option deliveryGuarantee=at-least-once"
        )
    return Run(sink=sink_id or query, owner=run, checkpoint=checkpoint_name(query, checkpoint))


def checkpoint_name(query: str, place: str | None) -> str:
    """One text for one checkpoint: its place (`sink_options.checkpoint_place`), and the id of its query.

    A copy of it has the same id in another place. Without a place only the id can be compared.
    """
    return f"{place} query {query}" if place else f"query {query}"


def batch_name() -> str:
    """Names the micro-batch that this task belongs to; empty: Spark does not say."""
    batch = batch_here()
    return "" if batch is None or batch.number < 0 or not batch.run else f"{batch.query} {batch.run} {batch.number}"


def task_number() -> int:
    """The Spark partition that this task writes; -1 outside of a task."""
    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def opened(brokers: Brokers, run: Run, deadline_s: float) -> Sink:
    """The run's sink, open. A process asks once per run; workers serve batch after batch."""
    sink = sink_of(brokers, run, deadline_s)
    known = (str(brokers), run.sink, run.owner)
    with _lock:
        found = _epochs.get(known)
    if found is not None:
        sink.epoch, sink.renew_ms = found
        return sink
    sink.open(one_shot=run.one_shot, is_kept=False)
    assert sink.epoch is not None, "open gives an epoch"
    with _lock:
        if len(_epochs) >= EPOCHS_MAX:
            _epochs.clear()
        _epochs[known] = sink.epoch, sink.renew_ms
    return sink


def forget(brokers: Brokers, run: Run) -> None:
    """Ask anew: what was known of the run's epoch did not hold."""
    with _lock:
        _epochs.pop((str(brokers), run.sink, run.owner), None)


def sink_of(brokers: Brokers, run: Run, deadline_s: float, epoch: int | None = None) -> Sink:
    """The run's sink, with the epoch that is known."""
    calls = Calls(brokers, timeout_s=TIMEOUT_S, deadline_s=deadline_s)
    return Sink(calls, run.sink, owner=run.owner, epoch=epoch)


def abort(brokers: Brokers, run: Run, stages: Sequence[Stage]) -> None:
    """Drop what was staged, with little patience. The broker spares stages that a commit has named.

    Raises:
        LiftlogError: some of it is there, until its lease is over.
    """
    _hasty(brokers, run).abort(stages)


def give_up(brokers: Brokers, run: Run) -> None:
    """End the sink of a job that failed, with all that is staged for it, also what a commit that failed has pinned.

    Tasks that still run, or have not begun, open and stage nothing any more.

    Raises:
        LiftlogError: some of it is there, until its lease is over.
    """
    sink = _hasty(brokers, run)
    try:
        sink.end()
    except InvalidRequest as error:
        if type(error) is not InvalidRequest or "path" not in error.fields:
            raise
        sink.delete(missing_ok=True)  # the broker is of an earlier release


def _hasty(brokers: Brokers, run: Run) -> Sink:
    return Sink(Calls(brokers, timeout_s=ABORT_S, deadline_s=ABORT_S), run.sink, owner=run.owner)


def all_written(messages: Sequence[Any]) -> list[Written]:
    """The messages of a commit, one of each task, by their numbers.

    Raises:
        StageLost: one is no message of a task: its rows are nowhere, so nothing may be decided (M2).
    """
    strange = [message for message in messages if not isinstance(message, Written)]
    if strange:
        raise StageLost(
            f"Spark commits {len(messages)} tasks and has {strange[0]!r} in the place of what one of them wrote;"
            " nothing was decided: write the batch anew"
        )
    return sorted(messages, key=lambda one: one.task)


def agreed(written: Sequence[Written]) -> tuple[Run, int] | None:
    """The run and the epoch of all tasks; None: none of them staged for a run.

    Raises:
        SinkFenced: tasks were given different epochs (M1).
        StaleIncarnation: a stream was deleted and created again between two tasks; also if they appended.
    """
    first = next((message for message in written if message.run is not None), None)
    incarnations: dict[str, str] = {}
    for message in written:
        if first is not None and (message.run, message.epoch) != (first.run, first.epoch):
            raise SinkFenced(
                f"sink {first.run.sink if first.run else ''!r}: task {first.task} was given epoch {first.epoch}, task"
                f" {message.task} epoch {message.epoch}: the sink was deleted or reset while the batch was written",
                epoch=message.epoch,
                asked=first.epoch,
            )
        for stream, incarnation in (message.incarnations or {}).items():
            if incarnations.setdefault(stream, incarnation) != incarnation:
                raise StaleIncarnation(
                    f"stream {stream!r} was deleted and created again while the batch was written",
                    stream=stream,
                    incarnation=incarnation,
                )
    return None if first is None or first.run is None else (first.run, first.epoch)


def digest_of_all(written: Sequence[Written]) -> str:
    """The digest of a batch, for the broker. "" with a warning: several releases of this package wrote it."""
    found = summed(message.digest for message in written)
    if not found and written:
        names = sorted({message.digest.rpartition(":")[0] for message in written})
        log.warning("sink.no_digest algorithms=%s note=a repetition is told by its number of rows only", names)
    return found


def is_stale(error: LiftlogError) -> bool:
    """Whether an epoch that is kept in this process may be the reason."""
    return isinstance(error, SinkFenced | UnknownSink)
