"""The calls of a client about consumer groups: who reads what, and how far behind."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.api.answers import Resolved, StreamDescription
from broker.api.errors import InvalidRequest, UnknownGroup
from broker.api.group_answers import GroupBrief, GroupDescription, GroupList
from broker.client.consumers import OFFSETS
from broker.client.http.calls import Calls, path, understand
from broker.client.positions import At, Position, at_json, partition_numbers

if TYPE_CHECKING:
    from broker.client.group import ReadingGroup


class GroupCalls:
    """A part of `Client`, which has the rest."""

    @property
    def _calls(self) -> Calls:
        raise NotImplementedError

    def describe(self, stream: str) -> StreamDescription:
        raise NotImplementedError

    def resolve(self, positions: Iterable[Position]) -> list[Resolved]:
        raise NotImplementedError

    def _resolved(self, positions: Iterable[Position]) -> list[Resolved]:
        raise NotImplementedError

    def group(self, name: str, *, timeout_s: float = 10.0, instance: str | None = None) -> ReadingGroup:
        """A consumer group, to read as one of its members: `for batch in client.group("billing").read("orders"): ...`

        Args:
            timeout_s: A member that is not heard of for so long is taken for dead.
            instance: Of a static member: who joins under it takes the place of the former one at once.
        Raises:
            InvalidRequest: `timeout_s` is below 2.
        """
        from broker.client.group import ReadingGroup
        from broker.client.group_start import GroupStart

        if timeout_s < 2:
            raise InvalidRequest(f"timeout_s={timeout_s!r}: must be 2 or more")
        start_at = partial(GroupStart, self.describe, self.resolve, self._resolved)
        return ReadingGroup(self._calls, start_at, name, timeout_s=timeout_s, instance=instance)

    def groups(self) -> list[GroupBrief]:
        """All consumer groups."""
        value = self._calls.json("GET", path("groups"), key=OFFSETS)
        return list(understand(GroupList, value, where="listing groups").groups)

    def describe_group(self, group: str) -> GroupDescription:
        """One group: its members, what each may read, and lags. Raises UnknownGroup."""
        return self._described(self._calls.json("GET", path("groups", group), key=OFFSETS))

    def reset_group(
        self, group: str, stream: str, to: At, *, partitions: Iterable[int] | None = None
    ) -> GroupDescription:
        """Move a group that has no members.

        Args:
            to: `"earliest"`, `"latest"`, an offset, or a datetime with time zone.
            partitions: Their numbers; None: all of the stream.
        Raises:
            UnknownGroup. GroupInUse: it has members.
        """
        body: dict[str, Any] = {"stream": stream, "to": at_json(to)}
        if partitions is not None:
            body["partitions"] = partition_numbers(partitions)
        return self._described(self._calls.json("POST", path("groups", group, "reset"), body, key=OFFSETS))

    def delete_group(self, group: str) -> None:
        """Remove a group that has no members, and its offsets. Raises UnknownGroup, GroupInUse."""
        self._calls.json("DELETE", path("groups", group), done_if=UnknownGroup, key=OFFSETS)

    def _described(self, value: Any) -> GroupDescription:
        return understand(GroupDescription, value, where="describing a group")
