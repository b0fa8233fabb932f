"""Members of consumer groups, thousands of them in one process: each polls over a connection of its own.

They do what a client does (docs/reference/http-api.md): join, poll with what was seen, give back what is asked back in
the next poll, leave, and go on to another broker when one refuses. They read nothing. Requests are bytes that are made
by hand: 10,000 clients would not fit beside three brokers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from broker.api.group_polls import longest_poll_ms

Address = tuple[str, int]
CALLERS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
"""Members connect from these in turns: a broker bounds what one address has open and under way."""
AGAIN_S = 0.5
REFUSED_S = 5.0
"""As `broker.client.group` has them."""
FIRST_PAUSE_S = 0.05


class Group:
    """The members of one group, and whether it has come to rest.

    Attributes:
        due_s: When it was last changed from outside; None: it has come to rest since.
        took_s: How long each change took.
    """

    def __init__(self, name: str, stream: str, partitions: int, timeout_ms: int) -> None:
        self.name, self.stream, self.partitions, self.timeout_ms = name, stream, partitions, timeout_ms
        self.members: list[Member] = []
        self.due_s: float | None = None
        self.took_s: list[float] = []

    def look(self) -> None:
        """Call with each answer to one of its members."""
        if self.due_s is not None and self._is_at_rest():
            self.took_s.append(time.perf_counter() - self.due_s)
            self.due_s = None

    def _is_at_rest(self) -> bool:
        """Every partition is granted to one member, none is asked back, and all have as many, give or take one."""
        counts = [len(member.held) for member in self.members]
        if sum(counts) != self.partitions or any(member.revoked for member in self.members):
            return False
        held = {each for member in self.members for each in member.held}
        return len(held) == self.partitions and max(counts) - min(counts) <= 1


class Member(asyncio.Protocol):
    """One member, from its join to its leave.

    Attributes:
        held: Partitions that it may read.
        revoked: Those that it is asked to give back, with their epochs.
        saw: Counts of what all members met: `polls`, `refused`, `joined_again`.
    """

    def __init__(self, group: Group, name: str, brokers: Sequence[Address], at: int, saw: Counter[str]) -> None:
        self.group, self.name, self.saw = group, name, saw
        self.held: set[int] = set()
        self.revoked: dict[int, int] = {}
        self._brokers, self._at, self._caller = brokers, at, CALLERS[at // len(brokers) % len(CALLERS)]
        self._session = self._version = 0
        self._is_over = False
        self._text = b""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def has_joined(self) -> bool:
        """Whether it is a member by now."""
        return self._session > 0

    async def join(self) -> None:
        """Begin. Returns when it is asked for, not when it is answered."""
        try:
            to = self._brokers[self._at % len(self._brokers)]
            await self._loop.create_connection(lambda: self, *to, local_addr=(self._caller, 0))
        except OSError:
            self._again()

    async def leave(self) -> None:
        """End, on another connection, as the one at hand is in a poll."""
        self.vanish()
        path, pause_s = f"/v1/groups/{self.group.name}/members/{self.name}/leave", FIRST_PAUSE_S
        end_s = time.perf_counter() + REFUSED_S
        body = {"session": self._session}
        while (await ask(self._brokers[self._at % len(self._brokers)], path, body, self._caller))[0] >= 500:
            self.saw["refused"] += 1
            self._at += 1
            if time.perf_counter() > end_s:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S)

    def vanish(self) -> None:
        """End without a word."""
        self._is_over = True
        self.group.members.remove(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._text = None, b""
        self._again()

    def _again(self) -> None:
        if not self._is_over:
            self.saw["refused"] += 1
            self._at += 1
            self._loop.call_later(AGAIN_S, lambda: None if self._is_over else self._loop.create_task(self.join()))

    def _ask(self) -> None:
        group = self.group
        if self._is_over or self._transport is None:
            return
        if not self._session:
            path = f"/v1/groups/{group.name}/members"
            body: dict[str, Any] = {"member": self.name, "streams": [group.stream], "timeout_ms": group.timeout_ms}
        else:
            path = f"/v1/groups/{group.name}/members/{self.name}/poll"
            wait_ms = longest_poll_ms(group.timeout_ms)
            body = {"session": self._session, "version": self._version, "wait_ms": wait_ms}
            if self.revoked:
                rows = self.revoked.items()
                body["released"] = [{"stream": group.stream, "partition": at, "epoch": epoch} for at, epoch in rows]
        self._transport.write(request(path, body))

    def data_received(self, data: bytes) -> None:
        self._text += data
        head, end, body = self._text.partition(b"\r\n\r\n")
        if not end or len(body) < length_in(head):
            return
        self._text = b""
        if not self._is_over:
            self._answered(int(head[9:12]), json.loads(body))

    def _answered(self, status: int, told: dict[str, Any]) -> None:
        if status == 200:
            self.saw["polls"] += 1
            if told["version"] >= self._version:
                self._session, self._version = told["session"], told["version"]
                rows = told["partitions"]
                self.held = {row["partition"] for row in rows if not row["is_revoked"]}
                self.revoked = {row["partition"]: row["epoch"] for row in rows if row["is_revoked"]}
                self.group.look()
            self._ask()
            return
        if told["reason"] == "unknown_member":
            self.saw["joined_again"] += 1
            self._session = self._version = 0
            self.held, self.revoked = set(), {}
            self._ask()
            return
        if self._transport is not None:
            self._transport.abort()  # and to another one


async def ask(broker: Address, path: str, body: Any, caller: str = CALLERS[0]) -> tuple[int, Any]:
    """One request over a connection of its own: the status, and the answer. 599: there was none."""
    try:
        reader, writer = await asyncio.open_connection(*broker, local_addr=(caller, 0))
    except OSError:
        return 599, None
    try:
        writer.write(request(path, body))
        head = await reader.readuntil(b"\r\n\r\n")
        text = await reader.readexactly(length_in(head))
        return int(head[9:12]), json.loads(text) if text else None
    except (OSError, asyncio.IncompleteReadError):
        return 599, None
    finally:
        writer.close()


def request(path: str, body: Any) -> bytes:
    """The bytes of a POST."""
    text = json.dumps(body, separators=(",", ":"))
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n\r\n{text}"
    ).encode()


def length_in(head: bytes) -> int:
    """Of the body behind this head; 0 if it does not say."""
    _, is_there, rest = head.lower().partition(b"content-length: ")
    return int(rest.partition(b"\r\n")[0]) if is_there else 0
