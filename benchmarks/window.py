"""A raw-socket publisher that awaits acks: prepared PUB lines with reply subjects out, acks counted as they come in.

Its cost per message is a few nanoseconds, so it serves brokers that are faster than a client library. Two ways:

    window   at most `window` messages are unacknowledged; as acks come in, as many messages go out (closed loop)
    rate     messages go out when they are due, or at the next tick, whatever the acks do (open loop), and latency
             counts from when they were due, so that a stall is charged to every message that it delayed

Acks of one stream's partition come in the order of its messages: ack n answers message n, so latencies follow
from two lists, messages sent by a time and acks seen by a time, without looking into an ack.
"""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.payload import Messages
from benchmarks.wire import Wire

_ACK = b"MSG _INBOX."
_ERRORS = (b'"error"', b"-ERR")


class AckFailed(Exception):
    """The other side answered with an error, or stopped answering."""


@dataclass(frozen=True, kw_only=True)
class Acked:
    """One run: how many messages, in which time (first sent to last ack), and each message's latency."""

    count: int
    seconds: float
    latencies_s: np.ndarray

    def percentile_ms(self, percent: float, *, skip: int = 0) -> float:
        """Without the first `skip` messages."""
        return float(np.percentile(self.latencies_s[skip:], percent)) * 1000


class AckCounter:
    """Counts acks in a stream of bytes. Reads may cut them anywhere."""

    def __init__(self) -> None:
        self.count = 0
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Count; raise AckFailed with the answer if one of them is an error."""
        data = self._tail + data
        for needle in _ERRORS:
            if (at := data.find(needle)) >= 0:
                raise AckFailed(data[max(0, at - 100) : at + 300].decode(errors="replace"))
        self.count += data.count(_ACK)
        self._tail = data[1 - len(_ACK) :]  # one byte too short to hold what was counted


def run_window(port: int, *, seed: int, size: int, subject: str, count: int, window: int) -> Acked:
    """Publish `count` messages, at most `window` of them unacknowledged."""
    with _Run(port, seed=seed, size=size, subject=subject) as run:
        while run.acks.count < count:
            room = min(window - (run.sent - run.acks.count), count - run.sent)
            if room > 0:
                run.send(room)
            run.receive()
        return run.result(count)


def run_rate(port: int, *, seed: int, size: int, subject: str, count: int, rate: float, tick_s: float = 0.0) -> Acked:
    """Publish `count` messages, `rate` per second, each when it is due.

    Args:
        tick_s: Look at the clock so often only, and send all that are due. At high rates: one write for each message
            keeps publisher and nats-server busy with nothing else, and what is measured is their queue.
    """
    with _Run(port, seed=seed, size=size, subject=subject) as run:
        started_s = next_s = time.monotonic()
        while run.acks.count < count:
            now_s = time.monotonic()
            due = min(count, int((now_s - started_s) * rate) + 1)
            if due > run.sent and now_s >= next_s:
                run.send(due - run.sent)
                next_s = now_s + tick_s
            next_s = max(next_s, started_s + run.sent / rate)
            run.receive(None if run.sent == count else max(0.0, next_s - time.monotonic()))
        return run.result(count, due_s=started_s + np.arange(count) / rate)


class _Run:
    """One connection's messages and acks, with the times at which their counts changed."""

    def __init__(self, port: int, *, seed: int, size: int, subject: str) -> None:
        inbox = f"_INBOX.bench{os.getpid()}"
        self._messages = Messages(seed=seed, size=size, subject=subject, reply=f"{inbox}.")
        self._wire = Wire(port)
        self._wire.subscribe(f"{inbox}.*")
        self._socket = self._wire.socket
        self._block, self._number = self._messages.block(0), 0
        self.sent = 0
        self.acks = AckCounter()
        self._sent_counts: list[int] = []
        self._sent_times: list[float] = []
        self._ack_counts: list[int] = []
        self._ack_times: list[float] = []

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def send(self, count: int) -> None:
        """The next `count` messages; the time is taken before the first of them."""
        rows, width = self._messages.rows, self._messages.width
        self._sent_times.append(time.monotonic())
        end = self.sent + count
        while self.sent < end:
            row = self.sent % rows
            if (number := self.sent // rows) != self._number:
                self._block, self._number = self._messages.block(number), number
            some = min(rows - row, end - self.sent)
            self._socket.sendall(self._block[row * width : (row + some) * width])
            self.sent += some
        self._sent_counts.append(end)

    def receive(self, timeout_s: float | None = None) -> None:
        """Take in what has come, waiting for something; with `timeout_s`, not longer than that."""
        if timeout_s is not None and not select.select([self._socket], [], [], timeout_s)[0]:
            return
        data = self._socket.recv(1 << 20)  # the connection's timeout ends a run that is not answered
        if not data:
            raise AckFailed("nats-server closed the connection")
        before = self.acks.count
        self.acks.feed(data)
        if self.acks.count != before:
            self._ack_times.append(time.monotonic())
            self._ack_counts.append(self.acks.count)

    def result(self, count: int, *, due_s: np.ndarray | None = None) -> Acked:
        """`due_s`: when each message was due, if that is not when it was sent."""
        if self.acks.count > count:
            raise AckFailed(f"{self.acks.count} acks for {count} messages: something else answers too")
        numbers = np.arange(count)
        sent = np.asarray(self._sent_times)[np.searchsorted(self._sent_counts, numbers, side="right")]
        acked = np.asarray(self._ack_times)[np.searchsorted(self._ack_counts, numbers, side="right")]
        return Acked(
            count=count,
            seconds=self._ack_times[-1] - self._sent_times[0],
            latencies_s=acked - (sent if due_s is None else due_s),
        )
