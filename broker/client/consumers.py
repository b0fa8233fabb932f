"""The calls of a client about consumers: how far each is, and how far behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.client.answers import ConsumerLag, understand
from broker.client.calls import Calls, path
from broker.client.positions import At, at_json


class ConsumerCalls:
    """A part of `Client`, which sets the attribute."""

    _calls: Calls

    def consumers(self) -> list[ConsumerLag]:
        """All consumers that have committed offsets, with their lag."""
        value = self._calls.json("GET", path("consumers"))
        return understand(lambda v: [ConsumerLag.of(c) for c in v["consumers"]], value, where="listing consumers")

    def consumer(self, consumer: str) -> ConsumerLag:
        """One consumer. Raises UnknownConsumer."""
        return self._consumer(self._calls.json("GET", path("consumers", consumer)))

    def lag(self, consumer: str) -> int:
        """How many committed records the consumer has not read yet. Raises UnknownConsumer."""
        return self.consumer(consumer).lag

    def commit(
        self,
        consumer: str,
        offsets: Mapping[str, Mapping[int, int]] | Iterable[Mapping[str, Any]],
        *,
        metadata: str | None = None,
    ) -> int:
        """Store how far a consumer is: the next offset that it will read, per stream and partition.

        Args:
            offsets: `{"orders": reader.positions}`, or objects of the HTTP API with the keys stream, partition, offset
                and maybe leader_epoch, incarnation, metadata.
            metadata: Any text, kept with each offset of the first form.
        Returns:
            How many were stored; they are durable.
        """
        if isinstance(offsets, Mapping):
            more = {} if metadata is None else {"metadata": metadata}
            items = [
                {"stream": stream, "partition": partition, "offset": offset, **more}
                for stream, by_partition in offsets.items()
                for partition, offset in by_partition.items()
            ]
        else:
            items = [dict(item) for item in offsets]
        value = self._calls.json("POST", path("consumers", consumer, "offsets"), {"offsets": items})
        return understand(lambda v: int(v["committed"]), value, where=f"committing for {consumer}")

    def reset(self, consumer: str, stream: str, to: At, *, partitions: Iterable[int] | None = None) -> ConsumerLag:
        """Move a consumer's committed offsets.

        Args:
            to: `"earliest"`, `"latest"`, an offset, or a datetime with time zone.
            partitions: Their numbers; None: all of the stream.
        """
        body: dict[str, Any] = {"stream": stream, "to": at_json(to)}
        if partitions is not None:
            body["partitions"] = list(partitions)
        return self._consumer(self._calls.json("POST", path("consumers", consumer, "reset"), body))

    def delete_consumer(self, consumer: str) -> None:
        """Forget all committed offsets of a consumer. Raises UnknownConsumer."""
        self._calls.json("DELETE", path("consumers", consumer))

    def _consumer(self, value: Any) -> ConsumerLag:
        return understand(ConsumerLag.of, value, where="describing a consumer")
