"""Which records a reader wants: by subject, key and time. One rule for brokers, the client and Spark.

    Conditions(subjects=("orders.*.paid",), key=b"17", since_us=…, until_us=…)

A record is wanted if it fits everything that is given. Vectorised: no object for a record.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from broker.api.errors import InvalidRequest, InvalidSubject
from broker.api.stream import check_subject

if TYPE_CHECKING:
    import pyarrow as pa

SUBJECTS_LENGTH_MAX: Final = 2048
"""Most characters of all patterns together: they stand in a URL."""
KEY_LENGTH_MAX: Final = 2048
"""Most characters of a key, as text or base64, likewise."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions; what is None or empty is none.

    Attributes:
        subjects: NATS subjects, wildcards allowed; one of them has to match.
        key: The record's key. A record without a key has none.
        since_us, until_us: The record's timestamp is in [since, until), microseconds since 1970 UTC.
    """

    subjects: tuple[str, ...] = ()
    key: bytes | None = None
    since_us: int | None = None
    until_us: int | None = None

    def __bool__(self) -> bool:
        """Whether there is any condition."""
        return self != ALL

    @property
    def columns(self) -> list[str]:
        """The columns that `mask` looks at."""
        is_timed = self.since_us is not None or self.until_us is not None
        used = {"timestamp": is_timed, "subject": bool(self.subjects), "key": self.key is not None}
        return [name for name, is_used in used.items() if is_used]

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows are wanted; never null.

        Args:
            rows: n >= 0 rows of the record schema; its `columns` are enough.
        """
        import pyarrow as pa  # here, as who only asks for records needs none of it
        import pyarrow.compute as pc

        masks: list[pa.BooleanArray] = []
        if self.subjects:
            masks.append(matches(rows.column("subject"), self.subjects))
        if self.key is not None:
            masks.append(pc.fill_null(pc.equal(rows.column("key"), pa.scalar(self.key, pa.binary())), False))
        if self.since_us is not None or self.until_us is not None:
            at = rows.column("timestamp").cast(pa.int64())
            if self.since_us is not None:
                masks.append(pc.greater_equal(at, self.since_us))
            if self.until_us is not None:
                masks.append(pc.less(at, self.until_us))
        return reduce(pc.and_, masks) if masks else pa.repeat(pa.scalar(True), rows.num_rows)

    def as_query(self) -> dict[str, str]:
        """The query parameters of a read."""
        found = {}
        if self.subjects:
            found["subject"] = ",".join(self.subjects)
        if self.key is not None:
            found["key_base64"] = base64.urlsafe_b64encode(self.key).decode()
        for name, value in (("since", self.since_us), ("until", self.until_us)):
            if value is not None:
                found[name] = (_EPOCH + timedelta(microseconds=value)).isoformat()
        return found

    @classmethod
    def of(
        cls,
        *,
        subject: str | Iterable[str] | None = None,
        key: str | bytes | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Conditions:
        """As people write it.

        Raises:
            InvalidSubject: a subject that cannot be one.
            InvalidRequest: a time without time zone; a key that UTF-8 does not have; or it is too long for a request.
        """
        subjects = () if subject is None else (subject,) if isinstance(subject, str) else tuple(subject)
        for pattern in subjects:
            check_subject(pattern, wildcards=True)
            if "," in pattern:
                raise InvalidRequest(f"subject={pattern!r}: no comma may be in it, give several as a list")
        times = {}
        for name, at in (("since", since), ("until", until)):
            if at is not None and at.tzinfo is None:
                raise InvalidRequest(f"{name}={at}: must have a time zone")
            times[name] = None if at is None else (at - _EPOCH) // timedelta(microseconds=1)
        try:
            key = key.encode() if isinstance(key, str) else key
        except UnicodeEncodeError:
            raise InvalidRequest(f"key={key!r}: is no text of UTF-8; give bytes", parameter="key") from None
        found = cls(
            subjects=subjects,
            key=key,
            since_us=times["since"],
            until_us=times["until"],
        )
        for name, limit in (("subject", SUBJECTS_LENGTH_MAX), ("key_base64", KEY_LENGTH_MAX)):
            if len(found.as_query().get(name, "")) > limit:
                raise InvalidRequest(f"{name}: more than {limit} characters in a request", parameter=name, limit=limit)
        return found

    @classmethod
    def of_query(cls, query: Mapping[str, Any]) -> Conditions:
        """From the parsed parameters of a read.

        Raises:
            InvalidRequest: a subject that cannot be one, a key that is no base64, or two keys.
        """
        key = query["key"]
        if query["key_base64"] is not None:
            if key is not None:
                raise InvalidRequest("key and key_base64 are both given: one is enough", parameter="key")
            try:
                key = base64.b64decode(query["key_base64"], altchars=b"-_", validate=True)
            except (binascii.Error, ValueError):
                raise InvalidRequest("key_base64 is not base64", parameter="key_base64") from None
        return cls(
            subjects=patterns_in(query["subject"], parameter="subject") if query["subject"] is not None else (),
            key=key.encode() if isinstance(key, str) else key,
            since_us=query["since"],
            until_us=query["until"],
        )


ALL: Final = Conditions()


def patterns_in(text: str, *, parameter: str) -> tuple[str, ...]:
    """Patterns that are separated by commas. Raises InvalidRequest."""
    try:
        return tuple(check_subject(pattern.strip(), wildcards=True) for pattern in text.split(","))
    except InvalidSubject as error:
        raise InvalidRequest(f"{parameter}={text!r}: {error}", parameter=parameter) from None


def matches(subjects: pa.Array, patterns: tuple[str, ...]) -> pa.BooleanArray:
    """Which subjects match one of the patterns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = [pattern for pattern in patterns if not {"*", ">"} & set(pattern.split("."))]
    if len(plain) == len(patterns) == 1 and not subjects.null_count:
        return pc.equal(subjects, pa.scalar(plain[0], pa.string()))
    if len(plain) == len(patterns):
        return pc.is_in(subjects, pa.array(plain, pa.string()))
    return pc.match_substring_regex(subjects, rf"(?s)\A(?:{'|'.join(map(_regex, patterns))})\z")


def _regex(pattern: str) -> str:
    tokens = [{"*": r"[^.]+", ">": r".+"}.get(token, re.escape(token)) for token in pattern.split(".")]
    return r"\.".join(tokens)
