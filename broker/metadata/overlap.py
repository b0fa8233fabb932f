"""Which subjects can carry the same message.

Two subjects overlap when some concrete subject matches both: token by token, `*` matches any one
token, a final `>` matches one or more.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.api.stream import StreamSettings


def overlaps(left: str, right: str) -> bool:
    """Whether some concrete subject matches both patterns."""
    a, b = left.split("."), right.split(".")
    for i in range(min(len(a), len(b))):
        if a[i] == ">" or b[i] == ">":
            return True
        if a[i] != b[i] and "*" not in (a[i], b[i]):
            return False
    return len(a) == len(b)


def subjects_of(settings: StreamSettings) -> list[str]:
    """The subjects that a stream subscribes to, partition 0 first; none for a stream fed by appends."""
    if settings.subject is None:
        return []
    if settings.partition_by != "subject_suffix":
        return [settings.subject]
    return [settings.subject, *(f"{settings.subject}.{i}" for i in range(1, settings.partitions))]


def any_overlap(left: Iterable[str], right: Iterable[str]) -> bool:
    """Whether any subject of one side overlaps any of the other."""
    others = list(right)
    return any(overlaps(a, b) for a in left for b in others)
