"""One call: what comes from the client, and what goes there.

    headers ─► messages, some at a time ─► end
    headers ◄─ messages ◄───────────────── status, in trailers

C1  What has come and is not taken holds up the client, by the window of its stream. It counts as held until it is done
    with: a message that is not whole, and one that its call was given, do as well (`multiplexed.H3`).
C2  A status is sent once, and last.
C3  A deadline of the client's (`grpc-timeout`) holds; without one, calls that are answered once have `TIMEOUT_S`.
C4  When the broker stops, a call that has nothing to do until its client says more ends with UNAVAILABLE. What has come
    is answered before.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Final, Protocol
from urllib.parse import quote

from broker.serving.liftbridge.messages import Messages, framed
from broker.serving.liftbridge.statuses import Code, StatusError

TIMEOUT_S: Final = 120.0
TIMEOUT_S_MAX: Final = 86_400.0
CONTENT_TYPE: Final = re.compile(r"application/grpc(\+proto)?(\s*;.*)?")
_TIMEOUT: Final = re.compile(r"(\d{1,8})([HMSmun])")
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
STATUS_LENGTH_MAX: Final = 1_000
FIELDS_LENGTH_MAX: Final = 2_000
"""Of the trailer `liftlog-fields`. (A client takes 8 KiB of all of them.)"""
AT_ONCE_MAX: Final = 4_096
"""Messages that a call works on before others have the loop."""
ASKED_BYTES_MAX: Final = 64 << 10
"""Of a message that is no record. Each name in it may cost an entry of the answer."""

Headers = list[tuple[str, str]]


class Stream(Protocol):
    """The stream of HTTP/2 below a call."""

    async def send(self, data: bytes) -> None:
        """Bytes, as the client takes them. Raises ConnectionError."""

    def send_headers(self, headers: Headers, *, is_last: bool) -> None:
        """Does nothing if the client has gone."""

    def acknowledge(self, byte_count: int) -> None:
        """The client may send so many bytes more."""

    def freed(self, byte_count: int) -> None:
        """So many bytes of the client's are not held any more."""

    def waiting(self) -> AbstractContextManager[None]:
        """The call waits for its client meanwhile."""
        ...


class Call:
    """See the module.

    Args:
        path: `/service/method`.
        metadata: The client's headers, names in small letters; of several of a name the last.
        authorization: All headers of that name.
    """

    def __init__(self, stream: Stream, path: str, metadata: Mapping[str, str], authorization: tuple[str, ...]) -> None:
        self.path, self.metadata, self.authorization = path, metadata, authorization
        self._stream = stream
        self._messages = Messages()
        self._came: list[bytes] = []
        self._owed = self._kept = self._given = 0  # of the window; in memory; of that what the call works on
        self._has_ended = False
        self._wrong: StatusError | None = None
        self._news: asyncio.Future[None] | None = None
        self._has_begun = self._is_over = self._is_stopping = False

    @property
    def has_ended(self) -> bool:
        """Whether the client has said all."""
        return self._has_ended

    # --- what comes -----------------------------------------------------------------------------------------------

    def feed(self, data: bytes, byte_count: int) -> None:
        """Bytes have come, which take so many of the stream's window."""
        self._owed += byte_count
        self._kept += byte_count
        if self._wrong is not None or self._is_over:
            self._let_go()
            return
        try:
            self._came += self._messages.feed(data)
        except StatusError as wrong:
            self._wrong, self._came, self._messages = wrong, [], Messages()
            self._let_go()
        if not self._came:  # of a message that is not whole yet: its client is not held up, and it counts
            self._acknowledge()
        self._wake()

    def ended(self) -> None:
        """The client has said all."""
        self._has_ended = True
        if self._messages.is_amid and self._wrong is None:
            self._wrong = StatusError(Code.INTERNAL, "the last message is cut off")
        self._wake()

    def stop(self) -> None:
        """The broker stops (C4)."""
        self._is_stopping = True
        self._wake()

    async def messages(self) -> list[bytes]:
        """All that have come since, at least one; empty: that was all. Those of before are done with.

        Raises:
            StatusError: what has come is wrong, or the broker stops.
        """
        self._free(self._given)
        return await self._next()

    async def _next(self) -> list[bytes]:
        while not self._came:
            if self._wrong is not None:
                raise self._wrong
            if self._has_ended:
                return []
            if self._is_stopping:
                raise StatusError(Code.UNAVAILABLE, "this broker stops")
            self._news = asyncio.get_running_loop().create_future()
            with self._stream.waiting():
                await self._news
        found, self._came = self._came[:AT_ONCE_MAX], self._came[AT_ONCE_MAX:]
        if not self._came:
            self._given = self._kept - self._messages.byte_count
            self._acknowledge()
        return found

    async def message(self, bytes_max: int = ASKED_BYTES_MAX) -> bytes:
        """The only one. Raises StatusError."""
        found = await self._next()
        if len(found) == 1 and len(found[0]) > bytes_max:
            raise StatusError(
                Code.INVALID_ARGUMENT, f"{self.path}: a message of {len(found[0])} bytes: at most {bytes_max}"
            )
        if len(found) != 1 or await self._next():
            raise StatusError(Code.UNIMPLEMENTED, f"{self.path} takes one message")
        return found[0]

    def waiting(self) -> AbstractContextManager[None]:
        """It waits meanwhile, and its connection counts as one that rests."""
        return self._stream.waiting()

    def _acknowledge(self) -> None:
        owed, self._owed = self._owed, 0
        if owed:
            self._stream.acknowledge(owed)

    def _free(self, byte_count: int) -> None:
        self._kept -= byte_count
        self._given = 0
        if byte_count:
            self._stream.freed(byte_count)

    def _let_go(self) -> None:
        self._acknowledge()
        self._free(self._kept)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # --- what goes ------------------------------------------------------------------------------------------------

    async def send(self, messages: Iterable[bytes]) -> None:
        """Messages, as the client takes them. Raises ConnectionError."""
        await self.send_framed(framed(messages))

    async def send_framed(self, data: bytes) -> None:
        """Messages that are framed. Raises ConnectionError."""
        self.begin()
        await self._stream.send(data)

    def begin(self) -> None:
        """The answer begins: headers."""
        if not self._has_begun:
            self._has_begun = True
            self._stream.send_headers([(":status", "200"), ("content-type", "application/grpc")], is_last=False)

    def end(
        self, code: Code, message: str = "", reason: str = "", fields: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """The status (C2). Fields that are too long together are left out."""
        if self._is_over:
            return
        self._is_over = True
        self._let_go()
        head: Headers = [] if self._has_begun else [(":status", "200"), ("content-type", "application/grpc")]
        trailers = [("grpc-status", str(int(code)))]
        if message:
            trailers.append(("grpc-message", quote(message[:STATUS_LENGTH_MAX], safe=" !#$&'()*+,/:;=?@[]\"<>|{}^`")))
        if reason:
            trailers.append(("liftlog-reason", reason))
        if fields and len(told := json.dumps(fields, default=str)) <= FIELDS_LENGTH_MAX:
            trailers.append(("liftlog-fields", told))
        self._stream.send_headers([*head, *trailers], is_last=True)

    # --- how long -------------------------------------------------------------------------------------------------

    def timeout_s(self) -> float | None:
        """What the client allows; None: it does not say. Raises StatusError."""
        given = self.metadata.get("grpc-timeout")
        if given is None:
            return None
        found = _TIMEOUT.fullmatch(given)
        if found is None:
            raise StatusError(Code.INVALID_ARGUMENT, f"grpc-timeout {given[:50]!r} is none")
        return min(int(found[1]) * _UNITS[found[2]], TIMEOUT_S_MAX)


Handler = Callable[[Call], Awaitable[None]]
