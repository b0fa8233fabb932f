"""How a connection ends that is cut: its client hears why.

The sending side is shut, and what still comes is thrown away for `LINGER_S` at most. A close with unread bytes is a
reset, which may overtake the answer.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.api.http import PROBLEM_JSON
from broker.serving.contract.problems import RETRY_AFTER_S

LINGER_S: Final = 5.0


class ClosingConnection(asyncio.Protocol):
    """The end of a connection: the last words are on their way, what still comes is thrown away."""

    def __init__(
        self,
        transport: asyncio.Transport,
        others: set[ClosingConnection],
        on_lost: Callable[[Exception | None], None] | None,
    ) -> None:
        self.transport = transport
        self._others = others
        self._on_lost = on_lost
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, words: bytes) -> None:
        """Say them."""
        self._others.add(self)
        transport = self.transport
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        transport.set_protocol(self)
        if transport.is_closing():
            return
        transport.resume_reading()
        transport.set_write_buffer_limits(0)  # so that `resume_writing` says when all of it is sent
        transport.write(words)
        if transport.get_write_buffer_size() == 0:
            self._shut()

    def pause_writing(self) -> None:
        """Something is still to be sent."""

    def resume_writing(self) -> None:
        """All is sent."""
        self._shut()

    def _shut(self) -> None:
        """End our side. Not by `write_eof`, which asyncio carries out later, where nobody catches what it raises."""
        transport = self.transport
        if transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
        except OSError:  # the client has reset the connection
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._others.discard(self)
        if self._on_lost is not None:
            self._on_lost(exc)


def last_words(error: LiftlogError, status: int) -> bytes:
    """An answer for a connection that no request has come over."""
    problem: dict[str, Any] = {**error.to_problem(), "status": int(status)}
    body = json.dumps(problem).encode()
    return (
        f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}\r\n"
        "Server: liftlog\r\n"
        f"Content-Type: {PROBLEM_JSON}\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Retry-After: {error.fields.get('retry_after_s', RETRY_AFTER_S)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode() + body
