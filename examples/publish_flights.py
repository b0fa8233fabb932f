"""Publish the flights to NATS: an ordinary publisher, written with nats-py, that has never heard of liftlog.

    python -m examples.publish_flights --nats nats://127.0.0.1:4222 --speed-up 3600

replays 2013 with an hour in each second; `--speed-up 0` goes as fast as it can. Every message asks for
an ack on a reply subject, as JetStream's publishers do, and a liftlog stream on `flights.>` answers once
the message is durable. `--no-acks` is plain NATS: sent, flushed, and nobody knows who got it.

    send ──► flights.EWR.UA   reply: _INBOX.x.17 ──► stream ──► disk
      ▲                                                          │
      └───── at most ACKS_PENDING_MAX unanswered ◄── {"stream":"flights","seq":18} to _INBOX.x.17

P1  With acks, a Publisher that is left without an exception has had an ack for every message.
P2  Messages of one Publisher arrive in the order in which they were sent: it has one connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final, Self

import nats
import pandas as pd
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples import flights

ACKS_PENDING_MAX: Final = 8_192
ACK_TIMEOUT_S: Final = 30.0
_TURN: Final = 1_000
"""Messages between two looks at the network."""


class NotAcked(Exception):
    """A message was refused, or nobody answered for it."""


class Publisher:
    """A connection to NATS that counts acks. Use as `async with`; leaving it waits for the last one (P1).

    Raises, from `send` and when it is left:
        NotAcked: a message was not stored; of those before and after it some may have been.
    """

    def __init__(self, url: str, *, acks: bool = True) -> None:
        self.sent = 0
        self._url, self._acks = url, acks
        self._answered = 0
        self._refusal: str | None = None
        self._error: Exception | None = None
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        # Reconnecting would send some messages twice or not at all: better to fail and say so.
        self._connection = await nats.connect(
            self._url,
            name="publish_flights",
            allow_reconnect=False,
            max_reconnect_attempts=1,  # counts for the first connection, too
            reconnect_time_wait=0.2,
            error_cb=self._on_error,
            closed_cb=self._on_closed,
        )
        self._inbox = self._connection.new_inbox()
        if self._acks:
            await self._connection.subscribe(f"{self._inbox}.*", cb=self._on_answer)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self._settle(0)
        finally:
            await self._connection.close()

    async def send(self, subject: str, payload: bytes) -> None:
        """Publish one message; waits while too many are unanswered."""
        await self._connection.publish(subject, payload, reply=f"{self._inbox}.{self.sent}" if self._acks else "")
        self.sent += 1
        if self.sent % _TURN == 0:
            await self._settle(ACKS_PENDING_MAX)

    async def _settle(self, pending_max: int) -> None:
        """Wait until at most `pending_max` messages are unanswered; without acks, until all have left."""
        if not self._acks:
            await self._connection.flush()
            return
        await asyncio.sleep(0)  # the connection's own tasks get their turn
        while self._refusal is None and self.sent - self._answered > pending_max:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), ACK_TIMEOUT_S)
            except TimeoutError:
                raise NotAcked(
                    f"{self._answered} of {self.sent} messages were acked, then none for {ACK_TIMEOUT_S:.0f} s"
                ) from None
        if self._refusal is not None:
            raise NotAcked(self._refusal)

    async def _on_error(self, error: Exception) -> None:
        self._error = error

    async def _on_closed(self) -> None:
        self._refusal = self._refusal or f"the connection to NATS ended: {self._error or 'the server closed it'}"
        self._news.set()

    async def _on_answer(self, answer: Msg) -> None:
        if (answer.headers or {}).get("Status") == "503":
            self._refusal = "nobody listens on the subject: is there a stream that captures it?"
        elif b'"error"' in answer.data:
            self._refusal = json.dumps(json.loads(answer.data)["error"])
        self._answered += 1
        self._news.set()


async def replay(
    url: str,
    frame: pd.DataFrame,
    *,
    speed_up: float = 0.0,
    acks: bool = True,
    on_progress: Callable[[int], None] = lambda sent: None,
) -> int:
    """Publish flights in the order of the frame; return how many.

    Args:
        speed_up: How much faster than in 2013; 0: as fast as possible. Flights of one minute leave together.
            Where the network is slower than that, the replay is late and goes on: nothing is left out.
        on_progress: Called now and then with the number sent.
    Raises:
        NotAcked: see Publisher.
    """
    clock = asyncio.get_running_loop()
    began_s = clock.time()
    groups = frame.groupby("event_time", sort=False) if speed_up else [(None, frame)]
    async with Publisher(url, acks=acks) as publisher:
        for minute, rows in groups:
            if minute is not None:
                due_s = began_s + (minute - frame["event_time"].iloc[0]).total_seconds() / speed_up
                await asyncio.sleep(max(0.0, due_s - clock.time()))
            for subject, payload in flights.messages(rows):
                await publisher.send(subject, payload)
                if publisher.sent % _TURN == 0:
                    on_progress(publisher.sent)
            on_progress(publisher.sent)
    return publisher.sent


def with_progress(url: str, frame: pd.DataFrame, console: Console, **options: Any) -> int:
    """`replay`, with a bar for people. Options and errors are those of `replay`."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("flights published", total=len(frame))
        on_progress = lambda sent: progress.update(task, completed=sent)  # noqa: E731
        return asyncio.run(replay(url, frame, on_progress=on_progress, **options))


def main() -> int:
    """The command. Exit codes: 0 all published, 1 not."""
    parser = argparse.ArgumentParser(prog="python -m examples.publish_flights", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--nats",
        metavar="URL",
        default=os.environ.get("LIFTLOG_NATS_URL", "nats://127.0.0.1:4222"),
        help="a NATS server [LIFTLOG_NATS_URL, nats://127.0.0.1:4222]",
    )
    parser.add_argument(
        "--speed-up", type=float, default=0.0, metavar="X", help="times the pace of 2013; 0: as fast as possible"
    )
    parser.add_argument("--start", metavar="DATE", help="first day, such as 2013-02-01 (UTC)")
    parser.add_argument("--end", metavar="DATE", help="day to stop before")
    parser.add_argument("--no-acks", dest="acks", action="store_false", help="do not ask for acks")
    options = parser.parse_args()
    console = Console(stderr=True)
    try:
        frame = flights.load(options.start, options.end)
        sent = with_progress(options.nats, frame, console, speed_up=options.speed_up, acks=options.acks)
    except (NotAcked, NatsError, OSError) as error:
        console.print(f"[red]not published:[/] {escape(str(error) or type(error).__name__)}")
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(f"  {sent} flights published" + (", every one acked" if options.acks else ", unacked"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
