"""The heads of partitions that other brokers lead, for those who watch here: one long poll to each of these brokers.

    watch ─► look(streams, leaders) ─► a task for each leader: GET /v1/watch, again and again ─► heads ─► who watches

H1  A head is told only while the catalog names the broker that told it as the leader, in the epoch that it told. Nobody
    is told of an end by a leader that was deposed.
H2  A broker that does not answer tells nothing: what it said before is forgotten at once.
H3  Polls go on while somebody watches, and end `IDLE_S` after the last one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.serving.contract.backend import Whereabouts
from broker.serving.http.peers import Peers

log = logging.getLogger(__name__)

IDLE_S: Final = 30.0
POLL_S: Final = 10.0
FIRST_S: Final = 1.0
"""A watch waits so long for brokers that were not asked yet."""
PAUSE_S: Final = 0.2
NAMES_MAX: Final = 200
"""With more streams watched, all of a broker are polled."""


class _Poll:
    """The poll of one broker."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.names: frozenset[str] = frozenset()
        self.wanted_s = 0.0
        self.streams: dict[str, Any] = {}
        self.has_answered = asyncio.Event()


class PolledHeads:
    """See the module. On the data plane's loop.

    Args:
        changed: Called with the streams of which something else was told, so that those who watch them look again.
    """

    def __init__(self, peers: Peers, changed: Callable[[Iterable[str]], None]) -> None:
        self._peers = peers
        self._changed = changed
        self._polls: dict[str, _Poll] = {}

    async def look(self, names: Iterable[str], leaders: Iterable[str]) -> None:
        """Have these brokers polled for these streams from now on; returns when each has answered once, or soon."""
        now_s, names = time.monotonic(), frozenset(names)
        new = []
        for address in set(leaders):
            poll = self._polls.setdefault(address, _Poll())
            poll.wanted_s = now_s
            if poll.task is None or poll.task.done() or not names <= poll.names:
                if poll.task is not None:
                    poll.task.cancel()
                poll.names |= names
                poll.has_answered.clear()
                poll.task = asyncio.create_task(self._follow(address, poll))
                new.append(poll.has_answered.wait())
        if new:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    await asyncio.gather(*new)

    def of(self, stream: str, incarnation: str, where: Whereabouts) -> dict[str, Any] | None:
        """The leader's word on a partition (H1); None: none now."""
        poll = None if where.leader is None else self._polls.get(where.leader.http)
        told = None if poll is None else poll.streams.get(stream)
        if told is None or told["incarnation"] != incarnation:
            return None
        found: dict[str, Any] | None = told["partitions"].get(str(where.partition))
        return found if found is not None and found["leader_epoch"] == where.leader_epoch else None

    async def close(self) -> None:
        """Poll nobody any more."""
        tasks = [poll.task for poll in self._polls.values() if poll.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, address: str, poll: _Poll) -> None:
        since: int | None = None
        while time.monotonic() - poll.wanted_s < IDLE_S:
            query = {"max_wait_ms": str(int(POLL_S * 1000))}
            query |= {} if len(poll.names) > NAMES_MAX else {"streams": ",".join(sorted(poll.names))}
            query |= {} if since is None else {"since": str(since)}
            try:
                answer = await self._peers.ask(address, "GET", "/v1/watch", query=query, timeout_s=POLL_S + 3)
            except LiftlogError as error:
                since = None
                if poll.streams:
                    log.info("http.peer_silent path=/v1/watch error=%s", error)
                self._told(poll, {})
                await asyncio.sleep(PAUSE_S)
            else:
                since = answer["version"]
                poll.has_answered.set()
                self._told(poll, answer["streams"])
        poll.names = frozenset()
        self._told(poll, {})

    def _told(self, poll: _Poll, streams: dict[str, Any]) -> None:
        before, poll.streams = poll.streams, streams
        moved = [name for name in before | streams if before.get(name) != streams.get(name)]
        if moved:
            self._changed(moved)
