"""The calls of a client about streams: make, describe, change, delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.api.answers import StreamDescription, Streams, Trimmed
from broker.api.errors import InvalidRequest, UnknownStream
from broker.api.payload_schema import KEY
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls, path, understand
from broker.client.positions import At, at_json, partition_numbers


class StreamCalls:
    """A part of `Client`, which has the rest."""

    brokers: Brokers

    @property
    def _calls(self) -> Calls:
        raise NotImplementedError

    def create_stream(self, name: str, **settings: Any) -> StreamDescription:
        """Create a stream. If it exists with the same settings, it stays as it is.

        Args:
            settings: Fields of `broker.api.stream.StreamSettings`. The others have the broker's defaults.
                `payload_schema` may be a `pyarrow.Schema`.
        Returns:
            The stream. `created` is False if it existed, perhaps because of an earlier try whose answer was lost.
        Raises:
            StreamExists: with other settings; field `differences`: {key: [existing, asked]}.
            InvalidName, InvalidSetting, UnknownSetting, InvalidSubject: as they say.
        """
        return self._stream(self._calls.json("POST", path("streams"), {"name": name, **_plain(settings)}))

    def describe(self, stream: str) -> StreamDescription:
        """A stream with its partitions. Raises UnknownStream."""
        return self._stream(self._calls.json("GET", path("streams", stream)))

    def streams(self, *, internal: bool = False) -> list[StreamDescription]:
        """All streams by name; `internal`: with the broker's own, whose names begin with `__`."""
        value = self._calls.json("GET", path("streams"), query={"internal": "true" if internal else "false"})
        return [self._noted(stream) for stream in understand(Streams, value, where="listing streams").streams]

    def alter(self, stream: str, **settings: Any) -> StreamDescription:
        """Change settings of a stream. `settings` as for `create_stream`.

        Raises:
            UnknownStream: there is none.
            InvalidSetting: out of its limits, or one that cannot be altered.
        """
        return self._stream(self._calls.json("PATCH", path("streams", stream), _plain(settings)))

    def delete_stream(self, stream: str, *, missing_ok: bool = False) -> bool:
        """Delete a stream and its records. Raises UnknownStream unless `missing_ok`; returns whether there was one."""
        try:
            self._calls.json("DELETE", path("streams", stream), done_if=UnknownStream)
        except UnknownStream:
            if not missing_ok:
                raise
            return False
        return True

    def pause(self, stream: str) -> StreamDescription:
        """Stop capturing and appending until `resume`; reads go on.

        Messages that NATS has delivered by then are stored first. Publishers that wait for acks get no answer.

        Raises:
            UnknownStream: there is none.
            ReadOnly: it is the broker's own.
        """
        return self._stream(self._calls.json("POST", path("streams", stream, "pause")))

    def resume(self, stream: str) -> StreamDescription:
        """End what `pause` began. Raises as `pause`."""
        return self._stream(self._calls.json("POST", path("streams", stream, "resume")))

    def set_read_only(self, stream: str, read_only: bool = True) -> StreamDescription:
        """Answer every record with an error (True), or take records again (False). Raises as `pause`."""
        return self._stream(self._calls.json("POST", path("streams", stream, "read-only"), {"read_only": read_only}))

    def trim(self, stream: str, *, before: At, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Delete the records before a position, for good.

        Args:
            before: The first position to keep: an offset; a datetime with time zone, which means the first record that
                is not older; or `"latest"`. If there is no such record, and with `"latest"`, all records go. If
                the position is gone already, nothing changes.
            partitions: Their numbers; None: all of the stream.
        Returns:
            The new log start offset of each partition.
        Raises:
            OffsetOutOfRange: `before` is above a high watermark; nothing was trimmed.
            UnknownStream, UnknownPartition: not there.
            ReadOnly: it is the broker's own.
        """
        if before == "earliest":
            raise InvalidRequest("before='earliest': no record is before it; give an offset, a datetime or 'latest'")
        body: dict[str, Any] = {"before": at_json(before)}
        if partitions is not None:
            body["partitions"] = partition_numbers(partitions)
        value = self._calls.json("POST", path("streams", stream, "trim"), body)
        found = understand(Trimmed, value, where=f"trimming {stream}").partitions
        return {partition.partition: partition.log_start_offset for partition in found}

    def add_partitions(self, stream: str, partitions: int) -> StreamDescription:
        """Raise the number of partitions of a stream.

        Records stay where they are. If the stream is keyed, keys may go to other partitions from now on: see
        `warnings`. Readers that follow all partitions take in the new ones. Open producers keep to
        those that they know.

        Args:
            partitions: Number of partitions in all, not fewer than now.
        Raises:
            InvalidSetting: fewer than now, or too many.
            UnknownStream: there is none.
            ReadOnly: it is the broker's own.
        """
        return self._stream(self._calls.json("POST", path("streams", stream, "partitions"), {"partitions": partitions}))

    def _stream(self, value: Any) -> StreamDescription:
        return self._noted(understand(StreamDescription, value, where="describing a stream"))

    def _noted(self, found: StreamDescription) -> StreamDescription:
        for partition in found.partitions:
            leader = None if partition.leader is None else partition.leader.http
            self.brokers.note_leader((found.name, partition.partition), leader)
        return found


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as JSON values. Raises InvalidSetting: a schema that cannot be kept."""
    schema = settings.get(KEY)
    if schema is None or isinstance(schema, str):
        return settings
    from broker.client.payload.kept import text_for

    return {**settings, KEY: text_for(schema)}
