"""The settings of a stream: names, defaults, limits and units in one place.

HTTP, the command line, the configuration file and Spark all build a `StreamSettings` from
plain values with `settings_from` and report its errors unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from broker.api.errors import InvalidName, InvalidSetting, InvalidSubject, UnknownSetting
from broker.api.misfit import Misfit, unknown
from broker.api.payload_schema import GIVEN_MAX, KEY, canonical
from broker.api.validation import Text, declared, is_utf8, object_of

NAME_BYTES_MAX: Final = 128
SUBJECT_BYTES_MAX: Final = 512
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
INTERNAL_PREFIX: Final = "__"
OFFSETS_STREAM: Final = "__offsets"
COMMITS_STREAM: Final = "__commits"
AUDIT_STREAM: Final = "__audit"
ACTIVITY_STREAM: Final = "__activity"
STAGES_PREFIX: Final = "__stages."
"""With the incarnation of a stream: the internal stream of what is staged for it, in a cluster."""

# Ours and the server's: capturing them would answer requests that are not meant for a log.
RESERVED_PREFIXES: Final = ("$JS", "$SYS", "_INBOX")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """The settings of a stream: its subject, and how it keeps its records.

    Attributes:
        subject: NATS subject, wildcards allowed; None: fed by appends only.
        partitions: Number of totally ordered logs, 1 to 1024.
        partition_by: `subject_suffix` (partition i > 0 listens on `subject.i`), `key`, `subject` or `token:N`
            (N counts from 1): CRC-32 of that, modulo the partitions.
        group: Streams of one group on one subject share its messages (a NATS queue group).
        reply_acks: Answer the reply subject of a message once it is durable.
        acks: An ack waits for this: `all`, `leader` or `none`. A message may ask for another by `Liftlog-Ack`.
        fsync: `batch`: before every ack and before consumers see a record. `interval`: every `fsync_interval_ms`.
        linger_ms: If nobody awaits an ack in a batch, it may wait this long for more records and other partitions.
        batch_bytes, batch_records: A batch is closed when it reaches either.
        record_bytes_max: A larger record is refused. Subject, key, value, headers and reply count together.
        segment_bytes, segment_age_ms: A segment is sealed when it reaches either.
        retention_ms, retention_bytes, retention_records: Sealed segments beyond any of these are removed. None: no
            such limit. They mean nothing under `cleanup = compact`.
        cleanup: `delete`: by retention. `compact`: only the newest record of each key stays. `both`: both.
        min_compaction_lag_ms: A record younger than this is not compacted away.
        min_cleanable_dirty_percent: Compact when this share of the sealed bytes has come since the last compaction.
        delete_retention_ms: A tombstone stays at least this long, for readers that are behind.
        coalesce_min_batch_bytes: If the batches of a sealed segment are smaller on average, the segment is rewritten
            with large ones. Small segments are joined. 0: never.
        compression: `none`, `lz4` or `zstd`, for sealed segments that are rewritten. Appended batches never are.
        dedup_window_ms: A message is not stored again if its `Nats-Msg-Id` was stored in this time. 0: off.
        dedup_ids_max: Number of ids that a partition keeps (48 bytes each). Publishers of more are told to try again.
        subjects_max: Number of subjects whose last record a partition remembers (48 to 96 bytes each), once a publisher
            expects it. Expectations about further subjects are refused. 0: all of them are.
        payload_schema: The columns of the JSON objects that the values are, for readers that ask for columns and name
            none. DDL, up to 16,384 characters (`payload_schema.py`). None: readers have to name them. Appends are not
            checked.
        encryption: `aes-256-gcm`: subjects, keys, values, headers and replies are encrypted on the broker's disk, with
            a key that the broker's master key wraps. None: they are not. Cannot be altered.
        concurrency_control: `optimistic`: what a client of Liftbridge publishes is stored if its `expectedOffset` is
            the next offset, or -1. None: that field is passed over. Cannot be altered. Other ways to append say with
            each request whether they expect an offset.
        envelopes: `open`: a NATS message that is one of Liftbridge's envelopes is taken apart: key, headers and value.
            `keep`, and None: it is stored as it comes. Cannot be altered where it decides partitions.
    """

    subject: str | None = declared(None, limit=(0, SUBJECT_BYTES_MAX))
    partitions: int = declared(1, limit=(1, 1024))
    partition_by: str = declared(
        "subject_suffix",
        pattern="subject_suffix|key|subject|token:[1-9][0-9]{0,2}",
        says="must be subject_suffix, key, subject or token:N with N from 1 to 999",
    )
    group: str | None = declared(None, limit=(0, SUBJECT_BYTES_MAX), read=lambda name: check_name(name, what="group"))
    reply_acks: bool = True
    acks: str = declared("all", limit=("all", "leader", "none"))
    fsync: str = declared("batch", limit=("batch", "interval"))
    fsync_interval_ms: int = declared(1_000, limit=(1, 3_600_000), unit="ms")
    linger_ms: int = declared(20, limit=(0, 10_000), unit="ms")
    batch_bytes: int = declared(1 << 20, limit=(1 << 10, 64 << 20), unit="bytes")
    batch_records: int = declared(1 << 16, limit=(1, 1 << 20), unit="records")
    record_bytes_max: int = declared(8 << 20, limit=(1, 64 << 20), unit="bytes")
    segment_bytes: int = declared(256 << 20, limit=(1 << 16, 1 << 40), unit="bytes")
    segment_age_ms: int = declared(7 * 24 * 3_600_000, limit=(1_000, 1 << 50), unit="ms")
    retention_ms: int | None = declared(7 * 24 * 3_600_000, limit=(1, 1 << 50), unit="ms")
    retention_bytes: int | None = declared(None, limit=(1, 1 << 60), unit="bytes")
    retention_records: int | None = declared(None, limit=(1, 1 << 60), unit="records")
    cleanup: str = declared("delete", limit=("delete", "compact", "both"))
    min_compaction_lag_ms: int = declared(0, limit=(0, 1 << 50), unit="ms")
    min_cleanable_dirty_percent: int = declared(50, limit=(0, 100))
    delete_retention_ms: int = declared(24 * 3_600_000, limit=(0, 1 << 50), unit="ms")
    coalesce_min_batch_bytes: int = declared(64 << 10, limit=(0, 64 << 20), unit="bytes")
    compression: str = declared("none", limit=("none", "lz4", "zstd"))
    dedup_window_ms: int = declared(120_000, limit=(0, 7 * 24 * 3_600_000), unit="ms")
    dedup_ids_max: int = declared(1 << 22, limit=(1, 1 << 26))
    subjects_max: int = declared(1 << 20, limit=(0, 1 << 26))
    payload_schema: str | None = declared(None, limit=(0, GIVEN_MAX), read=canonical)
    encryption: str | None = declared(None, limit=("aes-256-gcm",))
    concurrency_control: str | None = declared(None, limit=("optimistic",))
    envelopes: str | None = declared(None, limit=("open", "keep"))

    @property
    def opens_envelopes(self) -> bool:
        """What is in an envelope of Liftbridge is the record."""
        return self.envelopes == "open"

    @property
    def sorts_by_envelopes(self) -> bool:
        """What is in an envelope may decide its partition: all leaders have to open it, or none."""
        return self.subject is not None and self.partition_by == "key" and self.partitions > 1

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {key: getattr(self, key) for key in SHAPES}

    def as_stored(self) -> dict[str, Any]:
        """As the catalog has them: a setting that earlier releases do not know stands there only if it is set."""
        return {key: value for key, value in self.as_dict().items() if key not in SINCE or value is not None}


SHAPES: Final = object_of(StreamSettings).shapes
"""The values that each setting may have."""
LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    key: cast("tuple[int, int]", shape.rule.limit) for key, shape in SHAPES.items() if shape.kind == "int"
}
"""(least, greatest) of each setting that is a number, both allowed."""
CHOICES: Final = {key: shape.words for key, shape in SHAPES.items() if isinstance(shape, Text) and shape.words}
SINCE: Final[Mapping[str, int]] = {KEY: 3, "encryption": 8, "concurrency_control": 9, "envelopes": 12}
"""Settings by the feature level that they came with; those that are not here have the first. None is what they are if
nobody sets them."""
UNALTERABLE: Final = frozenset({"subject", "partitions", "partition_by", "group", "encryption", "concurrency_control"})
"""Settings that decide where a record goes, and whether; to change them under a running stream is a later release's
work."""


REPLICATION: Final = ("replication_factor", "min_insync_replicas")
"""Not settings of the stream: how many brokers keep each partition of it, and how many of them must be in sync."""
REPLICAS_MAX: Final = 9


def alone(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a stream, without how it is replicated. Raises InvalidSetting: there is one broker only."""
    settings, *found = replication_of(values)
    for key, value in zip(REPLICATION, found, strict=True):
        if value is not None and value > 1:
            raise InvalidSetting(f"{key}={value}: this broker is alone", key=key, value=value, limit=1)
    return settings


def replication_of(values: Mapping[str, Any]) -> tuple[dict[str, Any], int | None, int | None]:
    """The settings of a stream, and apart from them how it is replicated.

    Raises:
        InvalidSetting: a number that is none, or out of its limits.
    """
    settings, found = dict(values), []
    for key in REPLICATION:
        value = settings.pop(key, None)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_number and 1 <= value <= REPLICAS_MAX):
            raise InvalidSetting(
                f"{key}={value!r}: must be a whole number from 1 to {REPLICAS_MAX}",
                key=key,
                value=repr(value),
                limit=[1, REPLICAS_MAX],
            )
        found.append(value)
    return settings, found[0], found[1]


def settings_from(values: Mapping[str, Any], *, base: StreamSettings | None = None) -> StreamSettings:
    """Build settings from JSON-like values over the defaults (or over `base`).

    Raises:
        UnknownSetting: a key that is no setting; names the nearest.
        InvalidSetting: a value of a wrong type or beyond its limit.
        InvalidSubject: a subject that cannot be captured.
    """
    merged = (base or StreamSettings()).as_dict()
    for key, value in values.items():
        if key not in SHAPES:
            misfit = unknown(key, value, SHAPES)
            raise UnknownSetting(
                f"a stream has no setting {misfit.where!r}; {misfit.hint}", key=misfit.where, nearest=misfit.nearest
            )
        if key == "subject" and isinstance(value, str):
            check_subject(value)
        try:
            merged[key] = SHAPES[key].take(value)
        except Misfit as misfit:
            limit = {"limit": list(misfit.limit)} if misfit.limit else {}
            raise InvalidSetting(misfit.text(key), key=key, value=misfit.fact, **limit) from None
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


def stages_of(incarnation: str) -> str:
    """The name of the internal stream that has the stages of a stream's incarnation."""
    return f"{STAGES_PREFIX}{incarnation}"


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
    elif not is_utf8(subject):
        bad = "is not Unicode"
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


def new_values(
    values: Mapping[str, Any], defaults: StreamSettings, existing: StreamSettings | None, *, level: int | None = None
) -> dict[str, Any]:
    """The settings of a stream that is to be created, with the defaults of the broker's configuration.

    No suffix can follow a subject that ends with `>`. Such a stream is partitioned by the subject of its messages, if
    nobody says how: so it can have more partitions later. One with a subject opens envelopes, if nobody says otherwise.

    Args:
        values: As they are given.
        existing: The stream of that name, if there is one. How it is partitioned is no difference, if nobody says how,
            nor whether it opens envelopes.
        level: The cluster's feature level; None: the broker is alone.
    """
    of_all = {key: value for key, value in defaults.as_stored().items() if key not in ("subject", "group")}
    merged = {**of_all, **values}
    subject = values.get("subject")
    is_open = isinstance(subject, str) and subject.endswith(">")
    if "partition_by" not in values and is_open and defaults.partition_by == "subject_suffix":
        is_there = existing is not None and existing.subject == subject
        merged["partition_by"] = existing.partition_by if existing is not None and is_there else "subject"
    if "envelopes" not in values and existing is not None:
        merged |= {} if existing.envelopes is None else {"envelopes": existing.envelopes}
    elif "envelopes" not in values and subject is not None and (level is None or level >= SINCE["envelopes"]):
        merged["envelopes"] = "open"
    return merged


def check_new_subject(settings: StreamSettings) -> StreamSettings:
    """Return the settings of a stream that is to be created, if its subject may be that of a new one.

    Not part of `settings_from`: streams of before are read by that.

    Raises:
        InvalidSubject: the subject begins with `$`, which is the server's own; or `*` or `>` is a part of a token, as
            in `orders.**`, and so no wildcard.
    """
    subject = settings.subject
    if subject is not None and subject.startswith("$"):
        raise InvalidSubject(
            f"subject {subject!r} is one of the NATS server's own, which are never captured", subject=subject
        )
    if subject is not None and any(len(token) > 1 and {"*", ">"} & set(token) for token in subject.split(".")):
        raise InvalidSubject(
            f"subject {subject!r} has '*' or '>' within a token, where it is no wildcard: a wildcard is a token of its"
            " own, as in 'orders.*' or 'orders.>'",
            subject=subject,
        )
    return settings


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
