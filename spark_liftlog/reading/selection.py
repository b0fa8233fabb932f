"""Which streams and partitions a read is about: names, or a pattern that new streams may come to match. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_liftlog.reading.advance import Heads
from spark_liftlog.reading.offsets import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The streams and partitions that are read.

    Attributes:
        names: Sorted; none with a pattern.
        pattern: A regular expression for whole names; internal streams never match.
        partitions: Per stream, the only ones; a stream that is not in it is read whole.
        option: The option that says which streams, for errors.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, frozenset[int]] | None = None
    option: str = "stream"

    @property
    def watched(self) -> list[str]:
        """The names as `GET /v1/watch` takes them: what they let through `of` looks at again."""
        return list(self.names) if self.pattern is None else [f"{_literal_prefix(self.pattern)}*"]

    def has(self, stream: str) -> bool:
        """Whether the stream is read."""
        if self.pattern is None:
            return stream in self.names
        return re.fullmatch(self.pattern, stream) is not None

    def takes(self, key: Key) -> bool:
        """Whether the partition of a stream that is read is read."""
        only = None if self.partitions is None else self.partitions.get(key[0])
        return only is None or key[1] in only

    def is_whole(self, stream: str) -> bool:
        """Whether all partitions of a stream that is read are read, whatever their number."""
        return stream not in (self.partitions or {})

    def of(self, heads: Heads) -> Heads:
        """The heads of what is read."""
        if self.pattern is None and self.partitions is None:
            return heads
        incarnations = {name: found for name, found in heads.incarnations.items() if self.has(name)}
        partitions = {key: head for key, head in heads.partitions.items() if key[0] in incarnations and self.takes(key)}
        unknown = frozenset(key for key in heads.unknown if key[0] in incarnations and self.takes(key))
        return Heads(incarnations=incarnations, partitions=partitions, unknown=unknown)

    def lacking(self, heads: Heads) -> Key | None:
        """The first partition of what is named that the heads do not have; of a stream that is not in them, 0."""
        for stream in self.names:
            if stream not in heads.incarnations:
                return stream, 0
        named = {(stream, number) for stream, numbers in (self.partitions or {}).items() for number in numbers}
        return min(named - heads.partitions.keys(), default=None)

    def __str__(self) -> str:
        return f"pattern {self.pattern!r}" if self.pattern is not None else ", ".join(map(repr, self.names))


def _literal_prefix(pattern: str) -> str:
    """The text that every match surely begins with: the broker then need not tell of all streams."""
    if "|" in pattern:
        return ""
    found = re.match(r"[A-Za-z0-9_\-]*", pattern)
    prefix = found[0] if found else ""
    return prefix[:-1] if pattern[len(prefix) : len(prefix) + 1] in ("*", "?", "{") else prefix
