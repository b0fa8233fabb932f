"""The settings of a stream: names, defaults, limits and units in one place.

HTTP, the command line, the configuration file and Spark all build a `StreamSettings` from
plain values with `settings_from` and report its errors unchanged.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from broker.api.errors import InvalidName, InvalidSetting, InvalidSubject, UnknownSetting
from broker.api.plain import is_int64

NAME_BYTES_MAX: Final = 128
SUBJECT_BYTES_MAX: Final = 512
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
INTERNAL_PREFIX: Final = "__"
OFFSETS_STREAM: Final = "__offsets"
COMMITS_STREAM: Final = "__commits"

# Ours and the server's: capturing them would answer requests that are not meant for a log.
RESERVED_PREFIXES: Final = ("$JS", "$SYS", "_INBOX")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream is attached to and how it keeps its records.

    Attributes:
        subject: NATS subject, wildcards allowed; None: fed by appends only.
        partitions: How many totally ordered logs, 1 to 1024.
        partition_by: `subject_suffix` (partition i > 0 listens on `subject.i`), `key`, `subject` or `token:N`
            (N counts from 1): CRC-32 of that, modulo the partitions.
        group: Streams of one group on one subject share its messages (a NATS queue group).
        reply_acks: Answer the reply subject of a message once it is durable.
        acks: What an ack waits for: `all`, `leader` or `none`; a message may ask for its own by `Liftlog-Ack`.
        fsync: `batch`: before every ack and before consumers see a record. `interval`: every `fsync_interval_ms`.
        linger_ms: How long a batch in which nobody awaits an ack may wait for more records, and for other partitions.
        batch_bytes, batch_records: A batch is closed at either.
        record_bytes_max: A record over this is refused: subject, key, value, headers and reply together.
        segment_bytes, segment_age_ms: A segment is sealed at either.
        retention_ms, retention_bytes, retention_records: Sealed segments beyond any of these go; None: no such limit.
            Without meaning under `cleanup = compact`.
        cleanup: `delete`: by retention. `compact`: of the records of one key only the newest stays. `both`.
        min_compaction_lag_ms: A record younger than this is not compacted away.
        min_cleanable_dirty_percent: So much of the sealed bytes must have come since the last compaction.
        delete_retention_ms: How long a tombstone stays, at least, for readers that are behind.
        coalesce_min_batch_bytes: Sealed segments whose batches are smaller on average are written anew with large ones,
            and small segments are joined; 0: never.
        compression: `none`, `lz4` or `zstd`, for sealed segments that are written anew. What is appended never is.
        dedup_window_ms: A message whose `Nats-Msg-Id` was stored in this time is not stored again; 0: ids mean nothing.
        dedup_ids_max: So many ids a partition keeps (48 bytes each); publishers of more are told to try again.
        subjects_max: Of so many subjects a partition knows the last record (48 to 96 bytes each), once a publisher
            expects it; those who expect one of another subject are refused. 0: so is everybody.
    """

    subject: str | None = None
    partitions: int = 1
    partition_by: str = "subject_suffix"
    group: str | None = None
    reply_acks: bool = True
    acks: str = "all"
    fsync: str = "batch"
    fsync_interval_ms: int = 1_000
    linger_ms: int = 20
    batch_bytes: int = 1 << 20
    batch_records: int = 1 << 16
    record_bytes_max: int = 8 << 20
    segment_bytes: int = 256 << 20
    segment_age_ms: int = 7 * 24 * 3_600_000
    retention_ms: int | None = 7 * 24 * 3_600_000
    retention_bytes: int | None = None
    retention_records: int | None = None
    cleanup: str = "delete"
    min_compaction_lag_ms: int = 0
    min_cleanable_dirty_percent: int = 50
    delete_retention_ms: int = 24 * 3_600_000
    coalesce_min_batch_bytes: int = 64 << 10
    compression: str = "none"
    dedup_window_ms: int = 120_000
    dedup_ids_max: int = 1 << 22
    subjects_max: int = 1 << 20

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


# key -> (least, greatest), both allowed
LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    "partitions": (1, 1024),
    "fsync_interval_ms": (1, 3_600_000),
    "linger_ms": (0, 10_000),
    "batch_bytes": (1 << 10, 64 << 20),
    "batch_records": (1, 1 << 20),
    "record_bytes_max": (1, 64 << 20),
    "segment_bytes": (1 << 16, 1 << 40),
    "segment_age_ms": (1_000, 1 << 50),
    "retention_ms": (1, 1 << 50),
    "retention_bytes": (1, 1 << 60),
    "retention_records": (1, 1 << 60),
    "min_compaction_lag_ms": (0, 1 << 50),
    "min_cleanable_dirty_percent": (0, 100),
    "delete_retention_ms": (0, 1 << 50),
    "coalesce_min_batch_bytes": (0, 64 << 20),
    "dedup_window_ms": (0, 7 * 24 * 3_600_000),
    "dedup_ids_max": (1, 1 << 26),
    "subjects_max": (0, 1 << 26),
}
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "acks": ("all", "leader", "none"),
    "fsync": ("batch", "interval"),
    "cleanup": ("delete", "compact", "both"),
    "compression": ("none", "lz4", "zstd"),
}
NULLABLE: Final = frozenset({"subject", "group", "retention_ms", "retention_bytes", "retention_records"})
UNALTERABLE: Final = frozenset({"subject", "partitions", "partition_by", "group"})
"""Settings that decide where a record goes; changing them under a running stream is a later release's work."""

VALUE_SHOWN_MAX: Final = 100
"""So many characters of a refused value an error shows."""


def unit_of(key: str) -> str | None:
    """What a setting counts: bytes, ms, records; None: a count of something else, or no number."""
    return "bytes" if "bytes" in key else {"ms": "ms", "records": "records"}.get(key.rsplit("_", 1)[-1])


_TYPES: Final = {f.name: f.type for f in fields(StreamSettings)}


def settings_from(values: Mapping[str, Any], *, base: StreamSettings | None = None) -> StreamSettings:
    """Build settings from JSON-like values over the defaults (or over `base`).

    Raises:
        UnknownSetting: a key that is no setting; names the nearest.
        InvalidSetting: a value of a wrong type or beyond its limit.
        InvalidSubject: a subject that cannot be captured.
    """
    merged = (base or StreamSettings()).as_dict()
    for key, value in values.items():
        if key not in _TYPES:
            nearest = next(iter(difflib.get_close_matches(key, _TYPES, n=1)), None)
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            raise UnknownSetting(f"a stream has no setting {key!r}{hint}", key=key, nearest=nearest)
        merged[key] = _checked(key, value)
    settings = StreamSettings(**merged)
    if settings.subject is not None:
        check_capture_subject(settings.subject, reply_acks=settings.reply_acks)
        if settings.partition_by.startswith("token:"):
            _check_token(settings)
        if settings.partitions > 1 and settings.partition_by == "subject_suffix" and settings.subject.endswith(">"):
            raise InvalidSetting(
                f"partition_by=subject_suffix appends a token to {settings.subject!r}, nothing may follow '>';"
                " use partition_by=subject, key or token:N",
                key="partition_by",
                value=settings.partition_by,
            )
    return settings


def _checked(key: str, value: Any) -> Any:
    if value is None:
        if key in NULLABLE:
            return None
        raise InvalidSetting(f"{key} cannot be null", key=key, value=None)
    kind = str(_TYPES[key])
    if kind.startswith("int"):
        least, greatest = LIMITS[key]
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value <= greatest:
            limit = " ".join(filter(None, (f"from {least} to {greatest}", unit_of(key))))
            shown = repr(value)[:VALUE_SHOWN_MAX]
            raise InvalidSetting(
                f"{key}={shown}: must be {'' if is_whole else 'a whole number '}{limit}",
                key=key,
                value=value if is_int64(value) else shown,
                limit=[least, greatest],
            )
    elif kind.startswith("bool"):
        if not isinstance(value, bool):
            raise InvalidSetting(f"{key}={value!r}: must be true or false", key=key, value=repr(value))
    elif not isinstance(value, str):
        raise InvalidSetting(f"{key}={value!r}: must be text", key=key, value=repr(value))
    elif key in CHOICES and value not in CHOICES[key]:
        raise InvalidSetting(
            f"{key}={value!r}: must be one of {', '.join(CHOICES[key])}", key=key, value=value, limit=list(CHOICES[key])
        )
    elif key == "partition_by" and not re.fullmatch(r"subject_suffix|key|subject|token:[1-9][0-9]{0,2}", value):
        raise InvalidSetting(
            f"partition_by={value!r}: must be subject_suffix, key, subject or token:N with N from 1 to 999",
            key=key,
            value=value,
        )
    elif key == "group":
        check_name(value, what="group")
    return value


def _check_token(settings: StreamSettings) -> None:
    number = int(settings.partition_by.removeprefix("token:"))
    assert settings.subject is not None
    tokens = settings.subject.split(".")
    if number > len(tokens) and tokens[-1] != ">":
        raise InvalidSetting(
            f"partition_by=token:{number}: the subject {settings.subject!r} has only {len(tokens)} tokens",
            key="partition_by",
            value=settings.partition_by,
            limit=len(tokens),
        )


def check_name(name: str, *, what: str = "stream", internal: bool = False) -> str:
    """Return `name` if it can name a stream, group or consumer.

    Raises:
        InvalidName: not 1 to 128 of `A-Z a-z 0-9 _ . -`, the first a letter or digit; or reserved.
    """
    plain = name.removeprefix(INTERNAL_PREFIX) if internal else name
    if len(name) > NAME_BYTES_MAX or not _NAME.fullmatch(plain):
        raise InvalidName(
            f"{what} name {name[: NAME_BYTES_MAX + 1]!r}: 1 to {NAME_BYTES_MAX} characters of A-Z a-z 0-9 _ . -,"
            " the first a letter or digit",
            name=name[: NAME_BYTES_MAX + 1],
            limit=NAME_BYTES_MAX,
        )
    return name


def check_subject(subject: str, *, wildcards: bool = True) -> str:
    """Return `subject` if NATS accepts it.

    Raises:
        InvalidSubject: empty or blank tokens, a misplaced wildcard, or over 512 bytes.
    """
    tokens = subject.split(".")
    bad = None
    if not subject or len(subject.encode(errors="replace")) > SUBJECT_BYTES_MAX:
        bad = f"must be 1 to {SUBJECT_BYTES_MAX} bytes"
    elif any(not token for token in tokens):
        bad = "has an empty token"
    elif any(c.isspace() or ord(c) < 32 or ord(c) == 127 for c in subject):
        bad = "has white space or control characters"
    elif not wildcards and any(token in ("*", ">") for token in tokens):
        bad = "has a wildcard; a record needs a concrete subject"
    elif ">" in tokens[:-1]:
        bad = "has '>' before its end"
    if bad:
        raise InvalidSubject(f"subject {subject[:SUBJECT_BYTES_MAX]!r} {bad}", subject=subject[:SUBJECT_BYTES_MAX])
    return subject


def check_capture_subject(subject: str, *, reply_acks: bool) -> str:
    """Return `subject` if a stream may capture it.

    Subjects that cover replies or the server's own traffic would make the broker answer its own
    acks for ever, so they are refused unless the stream sends none.

    Raises:
        InvalidSubject: malformed, or covers `$JS.>`, `$SYS.>` or `_INBOX.>` while `reply_acks` is on.
    """
    check_subject(subject)
    first = subject.split(".", 1)[0]
    if first == "_INBOX":
        raise InvalidSubject(f"subject {subject!r} captures reply inboxes; inboxes are never captured", subject=subject)
    if reply_acks and (first in ("*", ">") or first in RESERVED_PREFIXES):
        raise InvalidSubject(
            f"subject {subject!r} covers $JS.>, $SYS.> or _INBOX.>: acks would be captured and answered again;"
            " set reply_acks=false, or choose a narrower subject",
            subject=subject,
        )
    return subject
