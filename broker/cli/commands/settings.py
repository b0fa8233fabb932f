"""The settings of a stream as options of commands: one row each, whichever commands take it.

The parameters of a function are the options of its command; `takes` adds a parameter for each row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

from broker.api.stream import LIMITS
from broker.cli.arguments import Option
from broker.cli.options import byte_count, duration_ms, number, or_none

Command = TypeVar("Command", bound=Callable[..., None])


def _option(flag: str, help: str, *, metavar: str | None = None, amount: Any = None) -> Any:
    """`amount`: a function of `options`, which makes the parser of a number from the limits of the setting."""
    parser = amount and amount(LIMITS[flag.removeprefix("--").replace("-", "_")])
    return Option(flag, help=help, metavar=metavar, parser=parser)


FIXED: Final[Mapping[str, Any]] = {
    "subject": Annotated[str | None, _option("--subject", "NATS subject to capture, wildcards allowed.", metavar="S")],
    "partitions": Annotated[int | None, _option("--partitions", "Number of partitions.", metavar="N")],
    "partition_by": Annotated[
        str | None, _option("--partition-by", "subject_suffix, key, subject or token:N.", metavar="HOW")
    ],
    "group": Annotated[str | None, _option("--group", "A group; its streams share the messages of a subject.")],
}
"""Where a record goes: fixed when the stream is made."""

CHANGEABLE: Final[Mapping[str, Any]] = {
    "reply_acks": Annotated[
        bool | None,
        _option("--reply-acks/--no-reply-acks", "Whether messages are acknowledged on their reply subject."),
    ],
    "acks": Annotated[str | None, _option("--acks", "When a record is acknowledged.", metavar="all|leader|none")],
    "fsync": Annotated[str | None, _option("--fsync", "When the disk is synced.", metavar="batch|interval")],
    "fsync_interval_ms": Annotated[
        Any,
        _option(
            "--fsync-interval-ms",
            "Time between two syncs, with --fsync interval.",
            metavar="DURATION",
            amount=duration_ms,
        ),
    ],
    "linger_ms": Annotated[
        Any, _option("--linger-ms", "How long an unacknowledged batch waits.", metavar="DURATION", amount=duration_ms)
    ],
    "batch_bytes": Annotated[
        Any, _option("--batch-bytes", "A batch closes at this size.", metavar="SIZE", amount=byte_count)
    ],
    "batch_records": Annotated[int | None, _option("--batch-records", "A batch closes at this count.", metavar="N")],
    "record_bytes_max": Annotated[
        Any, _option("--record-bytes-max", "Larger records are refused.", metavar="SIZE", amount=byte_count)
    ],
    "segment_bytes": Annotated[
        Any, _option("--segment-bytes", "A segment is sealed at this size.", metavar="SIZE", amount=byte_count)
    ],
    "segment_age_ms": Annotated[
        Any, _option("--segment-age-ms", "A segment is sealed at this age.", metavar="DURATION", amount=duration_ms)
    ],
    "retention_ms": Annotated[
        Any,
        _option(
            "--retention-ms",
            "Keep records this long; none: for ever.",
            metavar="DURATION|none",
            amount=or_none(duration_ms),
        ),
    ],
    "retention_bytes": Annotated[
        Any,
        _option(
            "--retention-bytes",
            "Keep this much in each partition; none: no limit.",
            metavar="SIZE|none",
            amount=or_none(byte_count),
        ),
    ],
    "retention_records": Annotated[
        Any,
        _option(
            "--retention-records",
            "Keep this many in each partition; none: no limit.",
            metavar="N|none",
            amount=or_none(number),
        ),
    ],
    "cleanup": Annotated[
        str | None,
        _option(
            "--cleanup",
            "Remove records by retention, by key (the newest stays), or both.",
            metavar="delete|compact|both",
        ),
    ],
    "min_compaction_lag_ms": Annotated[
        Any,
        _option(
            "--min-compaction-lag-ms", "Age at which a record may be compacted.", metavar="DURATION", amount=duration_ms
        ),
    ],
    "min_cleanable_dirty_percent": Annotated[
        int | None,
        _option("--min-cleanable-dirty-percent", "Compact when this percentage of the log is new.", metavar="N"),
    ],
    "delete_retention_ms": Annotated[
        Any,
        _option(
            "--delete-retention-ms",
            "Time that a tombstone stays after compaction.",
            metavar="DURATION",
            amount=duration_ms,
        ),
    ],
    "coalesce_min_batch_bytes": Annotated[
        Any,
        _option(
            "--coalesce-min-batch-bytes",
            "Join stored batches that are smaller; 0: never.",
            metavar="SIZE",
            amount=byte_count,
        ),
    ],
    "compression": Annotated[
        str | None,
        _option("--compression", "Compression of sealed segments that are rewritten.", metavar="none|lz4|zstd"),
    ],
    "dedup_window_ms": Annotated[
        Any,
        _option(
            "--dedup-window-ms",
            "Time that a Nats-Msg-Id is remembered; 0: not at all.",
            metavar="DURATION",
            amount=duration_ms,
        ),
    ],
    "dedup_ids_max": Annotated[
        int | None, _option("--dedup-ids-max", "Number of message ids that each partition remembers.", metavar="N")
    ],
    "subjects_max": Annotated[
        int | None,
        _option(
            "--subjects-max", "Number of subjects whose last record each partition remembers; 0: none.", metavar="N"
        ),
    ],
}
"""What may change later."""


def takes(*tables: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Give a command an option for each row, between its arguments and its own options. It gets `**settings`."""
    rows = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for table in tables
        for name, option in table.items()
    ]

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        arguments = [parameter for parameter in own if parameter.default is inspect.Parameter.empty]
        options = [parameter for parameter in own if parameter.default is not inspect.Parameter.empty]
        command.__signature__ = signature.replace(parameters=[*arguments, *rows, *options])  # type: ignore[attr-defined]
        return command

    return decorate
