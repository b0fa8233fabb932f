"""The follower's side of bulk: fetches what answers of one leader say to lie ready (`bulk.py`).

    connection's reader ─ take ─► a thread of its own: connect, ticket, bytes, "do they hold?" ─► the follower of that
                                  partition appends them, as if they had come with the answer
                                  anything else ─► failed: it asks again, and for `AVOIDED_S` gets all by gRPC

X1  The bytes are handed on once the leader has said that they hold (`bulk.B3`). Their follower checks each batch, as
    those that come by gRPC.
X2  One at a time, in memory that is used again, and let go when nothing has come for `IDLE_S`.
X3  A leader that sends nothing for `STALLED_S` is left. Answers by gRPC do not wait for this.
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
from broker.metadata.partition import Place
from broker.runtime.cluster.codec import BULK_BYTES_MAX, Answered
from broker.runtime.cluster.link.bulk import ASKS, HOLDS
from broker.runtime.cluster.link.tls import LinkTls, shut
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
        self._queue: queue.SimpleQueue[tuple[str, Answered] | None] = queue.SimpleQueue()
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

    def take(self, host: str, said: Answered) -> None:
        """Fetch the bytes of this answer; for one thread."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"bulk-from-{self._to}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads are allowed
                self._fail(said.place, str(error))
                return
            self._thread = thread
        self._queue.put((host, said))

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
            host, said = taken
            try:
                is_good, fault = self._fetch(host, said), "the bytes are not what was stored"
            except ssl.SSLError as error:
                is_good, fault = False, why_kept_out(error)
            except OSError as error:
                is_good, fault = False, str(error)
            except Exception as error:
                log.exception("replica.link_bug at=bulk from=%s", self._to)
                is_good, fault = False, repr(error)
            if not (is_good or self._is_closed):
                self._fail(said.place, fault)

    def _fetch(self, host: str, said: Answered) -> bool:
        bulk = said.bulk
        assert bulk is not None
        if len(self._memory) < bulk.byte_count:
            self._memory = bytearray(BULK_BYTES_MAX)
        data = memoryview(self._memory)[: bulk.byte_count]
        with self._connected(host, bulk.port) as connection:
            self._socket = connection
            try:
                connection.settimeout(STALLED_S)
                connection.sendall(bulk.ticket)
                at = 0
                while at < len(data):
                    count = 0 if self._is_closed else connection.recv_into(data[at:])
                    if not count:
                        raise ConnectionError(f"cut after {at} of {len(data)} bytes")
                    at += count
                connection.sendall(ASKS)
                if connection.recv(1) != HOLDS:  # X1
                    raise ConnectionError("the leader leads no more, or in another epoch")
            finally:
                self._socket = None
        self._counts["bulk"] += 1
        self.byte_count += len(data)
        return self._arrived(said, data)

    def _connected(self, host: str, port: int) -> socket.socket:
        plain = socket.create_connection((host, port), CONNECT_S)
        if self._tls is None:
            return plain
        try:
            secured = self._tls.client().wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
        if why := self._tls.unfit(secured, self._to):
            secured.close()
            raise ConnectionError(why)
        return secured

    def _fail(self, at: Place, fault: str) -> None:
        self._counts["bulk_failed"] += 1
        self._avoided_until_s = time.monotonic() + AVOIDED_S
        count = self._failed_log.due()
        if count:
            log.warning("replica.bulk_failed from=%s partition=%s/%d count=%d error=%s", self._to, *at, count, fault)
        self._failed(at)
