"""Asking the brokers of a cluster for records of a partition: one question, one answer.

    session.open("orders", 0, offset=100) ──► FetchAnswer: what its headers say, and its messages, verified

An answer comes from the leader, or from an in-sync replica in the reader's rack (`nearest.py`). If it breaks, the
caller asks again: `fetch.py`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlencode

from broker.api import http
from broker.api.columns import Columns
from broker.api.conditions import ALL, Conditions
from broker.api.errors import BadBatch, InvalidRequest, LiftlogError, StaleIncarnation
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.plain import INT64_MAX
from broker.client.http.address import Addresses
from broker.client.http.brokers import Brokers, PartitionKey
from broker.client.http.interrupt import Interrupt
from broker.client.http.pool import Exchange, Pool, Request, quoted
from broker.client.reading.frames import BUFFER_BYTES, Message, read_messages
from broker.client.reading.nearest import REPLICA_WAIT_MS, Nearest

ANSWER_BYTES: Final = 256 << 20
"""Asked for at a time: long enough to cost the broker nothing, short enough not to pin deleted segments for hours."""
TIMEOUT_S: Final = 10.0
BATCH_TIMEOUT_S: Final = 60.0
ALL_COLUMNS_S: Final = 60.0
"""After a broker of an earlier release refused to choose columns, none is asked to for so long."""

log = logging.getLogger(__name__)

_RANGE: Final = re.compile("([0-9]{1,18})-([0-9]{1,18})")
_EPOCHS: Final = re.compile("(-1|[0-9]{1,10}), (-1|[0-9]{1,10})")


class FetchSession:
    """Connections to the brokers of one cluster, and who leads which partition. Thread-safe and fork-safe.

    Opens nothing until the first read. Cheap to keep for the life of a process.

    Args:
        addresses: One or several brokers, as for `connect`; a leader's address that answers name is preferred.
        brokers: Share these instead; `addresses` is then ignored.
        rack: Read from an in-sync replica that is in this rack, where there is one. None: from leaders.
    """

    def __init__(self, addresses: Addresses = "", *, brokers: Brokers | None = None, rack: str | None = None) -> None:
        self.brokers = brokers or Brokers(addresses, pool=Pool())
        self.nearest = None if rack is None else Nearest(rack)
        self._all_columns_until = 0.0

    def open(
        self,
        stream: str,
        partition: int,
        offset: int | str,
        *,
        end: int | None = None,
        incarnation: str | None = None,
        epoch: int | None = None,
        max_bytes: int | None = ANSWER_BYTES,
        max_wait_ms: int = 0,
        verify: bool = False,
        wanted: Conditions = ALL,
        columns: Columns | None = None,
        timeout_s: float = TIMEOUT_S,
        batch_timeout_s: float = BATCH_TIMEOUT_S,
        interrupt: Interrupt | None = None,
    ) -> FetchAnswer:
        """Ask once for records from `offset` on.

        Args:
            offset: First offset wanted, or `earliest`, `latest`, `time:<iso>`.
            end: Exclusive; None: the high watermark when the broker answers.
            incarnation: The stream's incarnation that is meant.
            epoch: Leader epoch that the answering broker must have reached.
            max_bytes: Approximate size of the answer; it has at least one batch.
            max_wait_ms: If there is nothing yet, the broker waits this long and then answers without a batch.
            verify: Let the broker check what it has stored there first: damage on its disk becomes a lost range.
            wanted: Only these records; an answer may have none, and its `next_offset` is behind all that was looked at.
            columns: Those that are wanted; an answer may have all.
            timeout_s: Longest silence of the socket, beyond `max_wait_ms`.
            batch_timeout_s: Longest time until one batch has come.
        Returns:
            The answer, its body unread. Close it.
        Raises:
            Retryable: nobody could answer; ask again.
            OffsetOutOfRange: fields `log_start_offset`, `high_watermark`.
            UnknownStream, UnknownPartition, StaleIncarnation: as they say.
            BadBatch: what answers is no liftlog broker.
        """
        key = stream, partition
        query: dict[str, Any] = {
            "offset": offset,
            "end": end,
            "max_bytes": max_bytes,
            "max_wait_ms": max_wait_ms or None,
            "incarnation": incarnation,
            "epoch": epoch,
            "verify": "true" if verify else None,
            **wanted.as_query(),
        }
        if columns is not None and (verify or self._all_columns_until > time.monotonic()):
            columns = None

        def request(**more: Any) -> Request:
            given = {name: value for name, value in (query | more).items() if value is not None}
            return Request(
                target=f"/v1/streams/{quoted(stream)}/partitions/{partition}/records?{urlencode(given)}",
                headers={"Accept": http.ARROW_STREAM},
                timeout_s=timeout_s + given.get("max_wait_ms", 0) / 1000,
                interrupt=interrupt,
            )

        def exchange() -> tuple[Exchange, bool]:
            nearest = self.nearest if isinstance(offset, int) and not verify else None
            found, is_near = (None, False) if nearest is None else self._near(nearest, key, request, end is not None)
            return (self.brokers.exchange(request(), key=key), False) if found is None else (found, is_near)

        if columns is not None:
            query["columns"] = ",".join(columns)
        try:
            answered, is_near = exchange()
        except InvalidRequest as error:
            if columns is None or error.fields.get("parameter") != "columns":
                raise
            self._all_columns_until = time.monotonic() + ALL_COLUMNS_S
            columns = query["columns"] = None
            answered, is_near = exchange()
        try:
            where = f"{answered.address} {stream}/{partition}: "
            answer = FetchAnswer(answered, where, batch_timeout_s, is_near=is_near, columns=columns)
            if incarnation is not None and answer.incarnation != incarnation:
                raise StaleIncarnation(
                    f"{stream}: incarnation {answer.incarnation} answers, {incarnation} was asked for: the stream was"
                    " deleted and re-created",
                    stream=stream,
                    incarnation=answer.incarnation,
                )
        except BaseException:
            answered.close()
            raise
        return answer

    def _near(
        self, nearest: Nearest, key: PartitionKey, request: Callable[..., Request], is_promised: bool
    ) -> tuple[Exchange | None, bool]:
        """The answer of a replica that is near, and true; or the leader's; None: the leader is to be asked, plainly."""
        replica = nearest.replica(key)
        if replica is None:
            rack = nearest.rack_for(key)
            if rack is None:
                return None, False
            exchange = self.brokers.exchange(request(rack=rack), key=key)
            named = exchange.headers.get(http.NEAREST)
            if named is None:
                return exchange, False
            exchange.close(keep=False)
            replica = self.brokers.named(named)
            if replica is None:
                nearest.avoid(key)
                return None, False
            nearest.note(key, replica)
        asked = request(replica="any", **({"max_wait_ms": REPLICA_WAIT_MS} if is_promised else {}))
        try:
            return self.brokers.exchange_with(replica, asked), True
        except LiftlogError as error:
            if isinstance(error, InvalidRequest) and error.fields.get("parameter") == "columns":
                raise
            log.info("fetch.not_near at=%s/%d replica=%s error=%s", *key, replica, error)
            nearest.avoid(key)
            if asked.is_interrupted:
                raise
            return None, False

    def close(self) -> None:
        """Close idle connections. Idempotent."""
        self.brokers.pool.close()


class FetchAnswer:
    """One answer of a broker: what its headers say, and its batches. A context manager.

    Attributes:
        high_watermark: First offset that was not committed when the broker answered; -1: it does not know that yet.
        log_start_offset: First offset that the broker still has.
        next_offset: The offset to go on with after this answer.
        leader_epoch: Epoch of the answering leader.
        incarnation: Incarnation of the stream.
        is_near: A replica has answered that does not lead.
        epoch_before, epoch_behind: Leader epochs of the record before the asked offset, and of the one before
            `next_offset`; -1: there is none, or not known; of an earlier release: -1.
        lost: What the disk of who answers has lost of the offsets that were looked at; of an earlier release: empty.
    """

    def __init__(
        self,
        exchange: Exchange,
        where: str,
        batch_timeout_s: float,
        *,
        is_near: bool = False,
        columns: Columns | None = None,
    ) -> None:
        self.is_near = is_near
        self._columns = columns
        self._exchange = exchange
        self._where = where
        self._batch_timeout_s = batch_timeout_s
        self.high_watermark = self._number(http.HIGH_WATERMARK) if http.HIGH_WATERMARK in exchange.headers else -1
        self.log_start_offset = self._number(http.LOG_START_OFFSET)
        self.next_offset = self._number(http.NEXT_OFFSET)
        self.leader_epoch = self._number(http.LEADER_EPOCH)
        self.incarnation = exchange.headers.get(http.INCARNATION, "")
        self.lost = self._ranges(exchange.headers.get(http.LOST))
        self.epoch_before, self.epoch_behind = self._epochs(exchange.headers.get(http.EPOCHS, "-1, -1"))

    def _number(self, name: str) -> int:
        text = self._exchange.headers.get(name, "")
        if not re.fullmatch(r"-?[0-9]{1,18}|[0-9]{19}", text) or int(text) > INT64_MAX:
            raise BadBatch(f"{self._where}not an answer of a liftlog broker: header {name} is {text[:100]!r}")
        return int(text)

    def _ranges(self, text: str | None) -> list[tuple[int, int]]:
        found = [] if text is None else [_RANGE.fullmatch(each) for each in text.split(", ")]
        if None in found or len(found) > http.LOST_RANGES_MAX:
            raise BadBatch(f"{self._where}not an answer of a liftlog broker: header {http.LOST} is {text!r:.100}")
        return [(int(each[1]), int(each[2])) for each in found if each is not None]

    def _epochs(self, text: str) -> tuple[int, int]:
        found = _EPOCHS.fullmatch(text)
        if found is None:
            raise BadBatch(f"{self._where}not an answer of a liftlog broker: header {http.EPOCHS} is {text!r:.100}")
        return int(found[1]), int(found[2])

    def messages(self, memory: ReusedMemory | None = None, buffer_bytes: int = BUFFER_BYTES) -> Iterator[Message]:
        """Verified batches as stored, or those columns of them that were asked for. Once. Arguments and errors as
        `read_messages`."""
        length = self._exchange.length
        if length is None:
            raise BadBatch(f"{self._where}the answer has no Content-Length")
        return read_messages(
            self._exchange.readinto,
            length,
            where=self._where,
            buffer_bytes=buffer_bytes,
            patience_s=self._batch_timeout_s,
            memory=memory,
            columns=self._columns,
        )

    def close(self) -> None:
        """Give the connection back, or close it if batches were left unread. Idempotent."""
        self._exchange.close()

    def __enter__(self) -> FetchAnswer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._exchange.close(keep=kind is None)
