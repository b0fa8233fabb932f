"""Which subjects can carry the same message.

Two subjects overlap when some concrete subject matches both: token by token, `*` matches any one
token, a final `>` matches one or more.

`SubjectTree` answers that for thousands of streams at once, without comparing each with each:

    orders ─┬─ eu ── {shop}          a.b, a.*, a.> and * are asked for by walking down, token by token
            └─ *  ── {audit}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.api.stream import StreamSettings

ANY_TOKEN: Final = "*"
REST: Final = ">"


def subjects_of(settings: StreamSettings) -> list[str]:
    """The subjects that a stream subscribes to, partition 0 first; none for a stream fed by appends."""
    if settings.subject is None:
        return []
    if settings.partition_by != "subject_suffix":
        return [settings.subject]
    return [settings.subject, *(f"{settings.subject}.{i}" for i in range(1, settings.partitions))]


def subject_of(settings: StreamSettings, partition: int) -> str:
    """What one partition listens on: of `subjects_of` its own, or the one for all of them; empty: nothing. A stream may
    have thousands, and each asks."""
    if settings.subject is None:
        return ""
    is_own = settings.partition_by == "subject_suffix" and 0 < partition < settings.partitions
    return f"{settings.subject}.{partition}" if is_own else settings.subject


class SubjectTree:
    """The subjects of many streams, by token. A subject counts as often as it was added."""

    __slots__ = ("_children", "_names")

    def __init__(self) -> None:
        self._children: dict[str, SubjectTree] = {}
        self._names: dict[str, int] = {}  # of the streams whose subject ends here

    def add(self, name: str, subjects: Iterable[str]) -> None:
        """Stream `name` subscribes to these."""
        for subject in subjects:
            node = self
            for token in subject.split("."):
                node = node._children.setdefault(token, SubjectTree())
            node._names[name] = node._names.get(name, 0) + 1

    def remove(self, name: str, subjects: Iterable[str]) -> None:
        """Take back what `add` was told."""
        for subject in subjects:
            path = [self]
            for token in subject.split("."):
                path.append(path[-1]._children[token])
            names = path[-1]._names
            names[name] -= 1
            if not names[name]:
                del names[name]
            for above, node, token in zip(path[-2::-1], path[:0:-1], reversed(subject.split(".")), strict=True):
                if node._names or node._children:
                    break
                del above._children[token]

    def overlapping(self, subjects: Iterable[str]) -> set[str]:
        """The streams that have a subject that overlaps one of these."""
        found: set[str] = set()
        for subject in subjects:
            self._walk(subject.split("."), 0, found)
        return found

    def _walk(self, tokens: list[str], at: int, found: set[str]) -> None:
        if at == len(tokens):
            found.update(self._names)
            return
        token = tokens[at]
        if token == REST:
            for child in self._children.values():
                child._all(found)
            return
        rest = self._children.get(REST)
        if rest is not None:
            found.update(rest._names)
        if token == ANY_TOKEN:
            for name, child in self._children.items():
                if name != REST:
                    child._walk(tokens, at + 1, found)
            return
        for name in (token, ANY_TOKEN):
            if name in self._children:
                self._children[name]._walk(tokens, at + 1, found)

    def _all(self, found: set[str]) -> None:
        found.update(self._names)
        for child in self._children.values():
            child._all(found)


def covers(pattern: str, subject: str) -> bool:
    """Whether who subscribes to `pattern` gets messages of a concrete subject."""
    tokens, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == REST:
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
    elif len(tokens) != len(wanted):
        return False
    return all(token in (each, ANY_TOKEN) for token, each in zip(wanted, tokens, strict=False))
