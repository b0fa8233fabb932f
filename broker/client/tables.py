"""The call of a client for the newest value of each key. What it loads is in table.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from broker.api.answers import Resolved, StreamDescription
from broker.api.errors import InvalidRequest
from broker.client.http.calls import Calls
from broker.client.positions import Position

if TYPE_CHECKING:
    from broker.client.reading.ranges import End
    from broker.client.table import KeyedTable


class TableCalls:
    """A part of `Client`, which has the rest."""

    @property
    def _calls(self) -> Calls:
        raise NotImplementedError

    def describe(self, stream: str) -> StreamDescription:
        raise NotImplementedError

    def _resolved(self, positions: Iterable[Position]) -> list[Resolved]:
        raise NotImplementedError

    def table(
        self,
        stream: str,
        as_of: End = None,
        *,
        columns: Iterable[str] | None = None,
        shared_keys: Literal["refuse", "newest"] = "refuse",
    ) -> KeyedTable:
        """The newest value of each key, without keys whose newest record is a tombstone.

        All of the log is read; memory is needed for the keys that there are, not for the log. Records without a key
        are left out and counted.

        Args:
            as_of: Exclusive, as `end` of `read`: the state before an offset, a dict of them, or a datetime. Partitions
                that a dict does not name are read to the latest. None: the state of now.
            columns: As for `read`.
            shared_keys: What if a key has records in several partitions, because partitions were added later or are
                not chosen by key. `refuse`: an error. `newest`: the record that a broker received last counts.
        Returns:
            The rows, with `to_arrow()`, `to_pandas()`, `to_polars()`; `positions`: where each partition was read to.
        Raises:
            OffsetOutOfRange: compaction has removed records that were newest at `as_of`; field `superseded_to` has the
                first offset for which that is not so. Or as for `read`.
            InvalidRequest: a key is in several partitions (fields `key`, `offsets`); a column that does not exist.
            UnknownStream, StaleIncarnation: the stream is not there, or was deleted and re-created meanwhile.
        """
        if shared_keys not in ("refuse", "newest"):
            raise InvalidRequest(f"shared_keys={shared_keys!r}: must be 'refuse' or 'newest'")
        if isinstance(columns, str):
            raise InvalidRequest(f"columns={columns!r}: must be a list of names, such as ['key', 'value']")
        from broker.client.reading.ranges import plan_read
        from broker.client.table import TableReading

        description = self.describe(stream)
        asked = None if as_of == "latest" else as_of
        spans = plan_read(self._resolved, description, partitions=None, start="earliest", end=asked)
        named = {number for number, at in asked.items() if at != "latest"} if isinstance(asked, Mapping) else set(spans)
        return TableReading(
            self._calls,
            description,
            spans,
            describe=lambda: self.describe(stream),
            fixed=frozenset() if asked is None else frozenset(named),
            columns=None if columns is None else list(columns),
        ).table(shared_keys)
