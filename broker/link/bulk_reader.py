"""The follower's side of bulk: fetches what answers of one leader say to lie ready (`bulk.py`).

    connection's reader ─ take ─► a thread of its own: connect, ticket, bytes, "do they hold?" ─► the follower of that
                                  partition appends them, as if they had come with the answer
                                  anything else ─► failed: it asks again, and for `AVOIDED_S` gets all on the stream

X1  The bytes are handed on once the leader has said that they hold (`bulk.B3`). Their follower checks each batch, as
    those that come on the stream.
X2  One at a time, in memory that is used again, and let go when nothing has come for `IDLE_S`.
X3  A leader that sends nothing for `STALLED_S` is left. Answers on the stream do not wait for this.
"""

from __future__ import annotations

import logging
import queue
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from broker.api.tls_files import why_kept_out
from broker.link.bulk import ASKS, HOLDS, PURPOSE
from broker.link.codec import BULK_BYTES_MAX, Answered
from broker.link.handshake import Refused
from broker.link.tls import LinkTls, connected, shut
from broker.metadata.partition import Place
from broker.serving.http.meters import RateLimitedLog

log = logging.getLogger(__name__)

CONNECT_S: Final = 1.0
STALLED_S: Final = 2.0
AVOIDED_S: Final = 10.0
IDLE_S: Final = 5.0


class BulkReader:
    """See the module. Thread-safe.

    Args:
        to: The leader's broker.
        arrived: Hands an answer on with its bytes. False: they are not what was stored.
        failed: They do not come: the partition is to ask again. Must not wait.
        counts: The link's: `bulk` are those that came, `bulk_failed` the others.
        tls: None: the leader's port speaks none.

    Attributes:
        byte_count: How much came, in all.
    """

    def __init__(
        self,
        to: str,
        arrived: Callable[[Answered, memoryview], bool],
        failed: Callable[[Place], None],
        counts: Counter[str],
        tls: LinkTls | None = None,
    ) -> None:
        self._to = to
        self._tls = tls
        self._arrived = arrived
        self._failed = failed
        self._counts = counts
        self.byte_count = 0
        self._queue: queue.SimpleQueue[tuple[tuple[str, int], Answered] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._memory = bytearray()
        self._socket: socket.socket | None = None
        self._is_closed = False
        self._avoided_until_s = 0.0
        self._failed_log = RateLimitedLog()

    @property
    def is_avoided(self) -> bool:
        """It has just failed."""
        return time.monotonic() < self._avoided_until_s

    def take(self, at: tuple[str, int], said: Answered) -> None:
        """Fetch the bytes of this answer, whose stream is to this host and port; for one thread."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"bulk-from-{self._to}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads are allowed
                self._fail(said.place, str(error))
                return
            self._thread = thread
        self._queue.put((at, said))

    def close(self, timeout_s: float) -> bool:
        """For good. Returns whether nothing is handed on any more; False: that is not so within this time."""
        self._is_closed = True
        self._queue.put(None)
        connection = self._socket
        if connection is not None:
            shut(connection)
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                taken = self._queue.get(timeout=IDLE_S if self._memory else None)
            except queue.Empty:
                self._memory = bytearray()
                continue
            if taken is None:
                return
            at, said = taken
            try:
                is_good, fault = self._fetch(at, said), "the bytes are not what was stored"
            except Refused as error:
                is_good, fault = False, error.text
            except ssl.SSLError as error:
                is_good, fault = False, why_kept_out(error)
            except OSError as error:
                is_good, fault = False, str(error)
            except Exception as error:
                log.exception("replica.link_bug at=bulk from=%s", self._to)
                is_good, fault = False, repr(error)
            if not (is_good or self._is_closed):
                self._fail(said.place, fault)

    def _fetch(self, at: tuple[str, int], said: Answered) -> bool:
        bulk = said.bulk
        assert bulk is not None
        if len(self._memory) < bulk.byte_count:
            self._memory = bytearray(BULK_BYTES_MAX)
        data = memoryview(self._memory)[: bulk.byte_count]
        with self._connected(at[0], bulk.port or at[1]) as connection:
            self._socket = connection
            try:
                connection.settimeout(STALLED_S)
                connection.sendall(PURPOSE + bulk.ticket)
                got = 0
                while got < len(data):
                    count = 0 if self._is_closed else connection.recv_into(data[got:])
                    if not count:
                        raise ConnectionError(f"cut after {got} of {len(data)} bytes")
                    got += count
                connection.sendall(ASKS)
                if connection.recv(1) != HOLDS:  # X1
                    raise ConnectionError("the leader leads no more, or in another epoch")
            finally:
                self._socket = None
        self._counts["bulk"] += 1
        self.byte_count += len(data)
        return self._arrived(said, data)

    def _connected(self, host: str, port: int) -> socket.socket:
        return connected(host, port, self._tls, CONNECT_S, self._to)

    def _fail(self, at: Place, fault: str) -> None:
        self._counts["bulk_failed"] += 1
        self._avoided_until_s = time.monotonic() + AVOIDED_S
        count = self._failed_log.due()
        if count:
            log.warning("replica.bulk_failed from=%s partition=%s/%d count=%d error=%s", self._to, *at, count, fault)
        self._failed(at)
