"""The calls of a client about consumers: how far each is, and how far behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.api.answers import ConsumerLag, Consumers, OffsetsCommitted
from broker.api.errors import InvalidRequest, UnknownConsumer
from broker.api.stream import OFFSETS_STREAM
from broker.client.http.calls import Calls, path, understand
from broker.client.positions import At, at_json, partition_numbers, whole

OFFSETS: Final = (OFFSETS_STREAM, 0)
"""Its leader keeps the offsets of all consumers."""


class ConsumerCalls:
    """A part of `Client`, which has the rest."""

    @property
    def _calls(self) -> Calls:
        raise NotImplementedError

    def consumers(self) -> list[ConsumerLag]:
        """All consumers that have committed offsets, with their lag."""
        value = self._calls.json("GET", path("consumers"), key=OFFSETS)
        return list(understand(Consumers, value, where="listing consumers").consumers)

    def consumer(self, consumer: str) -> ConsumerLag:
        """One consumer. Raises UnknownConsumer."""
        return self._consumer(self._calls.json("GET", path("consumers", consumer), key=OFFSETS))

    def lag(self, consumer: str) -> int:
        """Number of committed records that the consumer has not read yet. Raises UnknownConsumer."""
        return self.consumer(consumer).lag

    def commit(
        self,
        consumer: str,
        offsets: Mapping[str, Mapping[int, int]] | Iterable[Mapping[str, Any]],
        *,
        metadata: str | None = None,
    ) -> int:
        """Store the next offset that a consumer will read, for each stream and partition.

        Args:
            offsets: `{"orders": reader.positions}`, or objects of the HTTP API with the keys stream, partition, offset
                and maybe leader_epoch, incarnation, metadata.
            metadata: Any text, kept with each offset of the first form.
        Returns:
            The number of offsets that were stored. They are durable.
        Raises:
            InvalidRequest: the offsets are of neither form, or not whole numbers.
        """
        items = _items(offsets, metadata)
        value = self._calls.json("POST", path("consumers", consumer, "offsets"), {"offsets": items}, key=OFFSETS)
        return understand(OffsetsCommitted, value, where=f"committing for {consumer}").committed

    def reset(self, consumer: str, stream: str, to: At, *, partitions: Iterable[int] | None = None) -> ConsumerLag:
        """Move a consumer's committed offsets.

        Args:
            to: `"earliest"`, `"latest"`, an offset, or a datetime with time zone.
            partitions: Their numbers; None: all of the stream.
        """
        body: dict[str, Any] = {"stream": stream, "to": at_json(to)}
        if partitions is not None:
            body["partitions"] = partition_numbers(partitions)
        return self._consumer(self._calls.json("POST", path("consumers", consumer, "reset"), body, key=OFFSETS))

    def delete_consumer(self, consumer: str, *, missing_ok: bool = False) -> bool:
        """Forget all committed offsets of a consumer. Raises UnknownConsumer unless `missing_ok`; returns whether there
        were any."""
        try:
            self._calls.json("DELETE", path("consumers", consumer), done_if=UnknownConsumer, key=OFFSETS)
        except UnknownConsumer:
            if not missing_ok:
                raise
            return False
        return True

    def _consumer(self, value: Any) -> ConsumerLag:
        return understand(ConsumerLag, value, where="describing a consumer")


def _items(offsets: Any, metadata: str | None) -> list[dict[str, Any]]:
    """The offsets of a commit as the HTTP API has them. Raises InvalidRequest."""
    if not isinstance(offsets, Mapping):
        if isinstance(offsets, str | bytes) or not isinstance(offsets, Iterable):
            raise _misshaped(f"are a {type(offsets).__name__}")
        items = list(offsets)
        for row, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise _misshaped(f"have a {type(item).__name__} as element {row}")
        return [dict(item) for item in items]
    more = {} if metadata is None else {"metadata": metadata}
    found = []
    for stream, by_partition in offsets.items():
        if not isinstance(by_partition, Mapping):
            raise _misshaped(f"have a {type(by_partition).__name__} for stream {stream!r}")
        for partition, offset in by_partition.items():
            number, at = whole(partition), whole(offset)
            if number is None or at is None:
                raise _misshaped(f"have {partition!r}: {offset!r} for stream {stream!r}, which are no whole numbers")
            found.append({"stream": stream, "partition": number, "offset": at, **more})
    return found


def _misshaped(what: str) -> InvalidRequest:
    return InvalidRequest(
        f'the offsets {what}; they must be {{"orders": {{0: 42}}}}, by stream and partition, or a list of objects with'
        " the keys stream, partition, offset"
    )
