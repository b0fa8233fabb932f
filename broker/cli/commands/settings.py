"""The settings of a stream as options of commands, by their declaration in `broker.api.stream`.

The parameters of a function are the options of its command; `takes` adds a parameter for each setting.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypeVar

import click

from broker.api.payload_schema import GIVEN_MAX
from broker.api.stream import CHOICES, LIMITS, REPLICAS_MAX, SHAPES, UNALTERABLE, StreamSettings
from broker.api.validation import OrNone
from broker.cli.arguments import Option
from broker.cli.options import byte_count, duration_ms, duration_text, number, or_none, size_text

Command = TypeVar("Command", bound=Callable[..., None])

HELP: Final = {
    "subject": "NATS subject to capture, wildcards allowed.",
    "partitions": "Number of partitions.",
    "partition_by": "subject_suffix, key, subject or token:N.",
    "group": "A group; its streams share the messages of a subject.",
    "reply_acks": "Whether messages are acknowledged on their reply subject.",
    "acks": "When a record is acknowledged.",
    "fsync": "When the disk is synced.",
    "fsync_interval_ms": "Time between two syncs, with --fsync interval.",
    "linger_ms": "How long an unacknowledged batch waits.",
    "batch_bytes": "A batch closes at this size.",
    "batch_records": "A batch closes at this count.",
    "record_bytes_max": "Larger records are refused.",
    "segment_bytes": "A segment is sealed at this size.",
    "segment_age_ms": "A segment is sealed at this age.",
    "retention_ms": "Keep records this long; none: for ever.",
    "retention_bytes": "Keep this much in each partition; none: no limit.",
    "retention_records": "Keep this many in each partition; none: no limit.",
    "cleanup": "Remove records by retention, by key (the newest stays), or both.",
    "min_compaction_lag_ms": "Age at which a record may be compacted.",
    "min_cleanable_dirty_percent": "Compact when this percentage of the log is new.",
    "delete_retention_ms": "Time that a tombstone stays after compaction.",
    "coalesce_min_batch_bytes": "Join stored batches that are smaller; 0: never.",
    "compression": "Compression of sealed segments that are rewritten.",
    "dedup_window_ms": "Time that a Nats-Msg-Id is remembered; 0: not at all.",
    "dedup_ids_max": "Number of message ids that each partition remembers.",
    "subjects_max": "Number of subjects whose last record each partition remembers; 0: none.",
    "payload_schema": "Keep the columns of the JSON objects that values are: a file with DDL; -: stdin.",
    "encryption": "Encrypt records on disk; the broker needs a master key.",
    "concurrency_control": "Mind the expectedOffset of Liftbridge's clients.",
    "envelopes": "Take Liftbridge's envelopes apart, or store them as they come.",
}
REPLICATION_HELP: Final = {
    "replication_factor": (
        "In a cluster: brokers that keep it [3, or as many as there are].",
        "In a cluster: so many brokers keep it, not fewer than now.",
    ),
    "min_insync_replicas": (
        "So many must have a record before it is acknowledged [2 with three replicas, else 1].",
        "So many must have a record before it is acknowledged.",
    ),
}
"""Help for a new stream, and for one that is changed."""
CHANGEABLE: Final = tuple(key for key in HELP if key not in UNALTERABLE)
_METAVARS: Final = {"subject": "S", "partition_by": "HOW", "group": "G"}
_AMOUNTS: Final = {"ms": ("DURATION", duration_ms), "bytes": ("SIZE", byte_count)}
_TEXTS: Final = {"ms": duration_text, "bytes": size_text}


def takes(keys: Iterable[str], *, is_new: bool = False) -> Callable[[Command], Command]:
    """Give a command an option for each setting, and for its replication, between its arguments and its own options.
    It gets `**settings`.

    Args:
        is_new: A setting that is not given has its default, which the help shows. Else it stays as it is.
    """
    rows = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(key, is_new))
        for key in (*keys, *REPLICATION_HELP)
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


def default_text(key: str) -> str | None:
    """The default of a setting as its option takes it. None: there is none."""
    value, shape = getattr(StreamSettings(), key), SHAPES[key]
    if value is None:
        return "none" if isinstance(shape, OrNone) and key in LIMITS else None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _TEXTS.get(shape.rule.unit or "", str)(value)


def _annotation(key: str, is_new: bool) -> Any:
    flag = "--" + key.replace("_", "-")
    if key == "payload_schema":
        return Annotated[str | None, Option("--schema", help=HELP[key], metavar="FILE", parser=_text_in)]
    if key in REPLICATION_HELP:
        help = REPLICATION_HELP[key][0 if is_new else 1]
        return Annotated[int | None, Option(flag, help=help, metavar="N", min=1, max=REPLICAS_MAX)]
    shape, help = SHAPES[key], HELP[key]
    if is_new and (default := default_text(key)):
        help = f"{help.removesuffix('.')} [{default}]."
    if shape.kind == "bool":
        return Annotated[bool | None, Option(f"{flag}/--no-{flag[2:]}", help=help)]
    if shape.kind == "str":
        metavar = _METAVARS.get(key) or "|".join(CHOICES.get(key, ())) or None
        return Annotated[str | None, Option(flag, help=help, metavar=metavar)]
    metavar, amount = _AMOUNTS.get(shape.rule.unit or "", ("N", number))
    if isinstance(shape, OrNone):
        return Annotated[Any, Option(flag, help=help, metavar=f"{metavar}|none", parser=or_none(amount)(LIMITS[key]))]
    return Annotated[Any, Option(flag, help=help, metavar=metavar, parser=amount(LIMITS[key]))]


def _text_in(path: str) -> str:
    """The text of a file, as an option has its name."""
    try:
        with click.open_file(path, encoding="utf-8") as file:
            return str(file.read(GIVEN_MAX + 1))
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path}: {error}") from error
