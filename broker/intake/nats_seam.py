"""How the intake parser gets behind nats-py.

nats-py owns connection, TLS, authentication and reconnect. Its `Client` hands every chunk that it reads
to `Client._ps.parse`. We put our parser there, read wider chunks, and pass the few control operations on
to the client's own handlers. Private to nats-py, hence the pin `>=2.16,<2.17` and tests/unit/runtime/test_nats_seam.py.

Over TCP and TLS nats-py's read loop mostly sleeps in `WideTransport.read`: what comes meanwhile is taken in by the
callback of the event loop that read it (see inbox.py). The read loop is woken for what it alone can do.

    socket ─► Inbox ─► take_in: feed, after_feed ─► done
                          └─ control operations, held up, an error ─► read loop: parse, may_read, nats-py

P1  Control operations are handled in order, and before anything that comes after their chunk is parsed.
P2  While `is_held_up`, nothing is parsed: the read loop waits in `may_read`, the Inbox fills, the socket is not read.
P3  An error in `take_in` is raised by `read`, and nats-py reconnects as it does at one of `parse`.
P4  Only one connection is parsed: after `reset` nothing is taken in until the next, which ends the one before.
P5  A connection that ends ends soon, also if the server takes nothing any more: nats-py waits for that without a limit
    before it says that it has ended, or makes the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import nats.aio.client
import nats.aio.transport
from nats.errors import ProtocolError

from broker.api.plain import parse_json
from broker.client.nats_tls import insist_on_tls
from broker.common.elapsed import MACHINE, Clocks
from broker.ingest import Intake, IntakeProtocolError
from broker.intake.inbox import Inbox
from broker.intake.pacing import unpace_loopback
from broker.intake.rights import refusal_in
from broker.intake.websocket import SendingWebSocket

log = logging.getLogger(__name__)

READ_BYTES = 512 << 10
CLOSE_S = 2.0
"""So long what was written before is still sent when a connection is closed."""
LOOK_S = 0.1
"""How often it is looked whether what holds up the intake has ended, or the connection."""


class WideTransport(nats.aio.transport.TcpTransport):
    """nats-py's TCP transport, which reads up to `READ_BYTES` at once, and into an Inbox (its own: 32 KiB, by streams).

    Until the handshake is done, TLS included, asyncio's streams read; from then on, once they hold nothing, the Inbox.

    Args:
        seam: Takes in what comes while `read` waits.
    """

    def __init__(self, seam: ParserSeam) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seam = seam
        self._inbox: Inbox | None = None

    def __bool__(self) -> bool:
        return True  # set before the first connect; nats-py would make its own otherwise

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()  # nats-py leaves one open that did not answer soon enough
        self._seam.reset()
        self._inbox = None
        await super().connect(uri, buffer_size, connect_timeout)
        if self._io_writer is not None and (sock := self._io_writer.get_extra_info("socket")) is not None:
            unpace_loopback(sock, sock.getpeername())

    async def read(self, buffer_size: int) -> Any:
        """The next bytes, good until the next call; empty at the end, and when `take_in` has left something to do."""
        if self._inbox is not None:
            return await self._inbox.take()
        data: bytes = await super().read(READ_BYTES)
        reader, writer = self._io_reader, self._io_writer
        is_drained = 0 < len(data) < READ_BYTES
        if reader is not None and writer is not None and is_drained and not reader.at_eof() and not reader.exception():
            transport, protocol = writer.transport, writer.transport.get_protocol()
            if isinstance(transport, asyncio.Transport) and isinstance(protocol, asyncio.StreamReaderProtocol):
                self._inbox = Inbox(transport, protocol, READ_BYTES, self._seam.take_in)
                transport.set_protocol(self._inbox)
        return data

    def at_eof(self) -> bool:
        if self._inbox is not None:
            return self._inbox.at_end()
        return bool(super().at_eof())  # type: ignore[no-untyped-call]

    async def drain(self) -> None:
        if not self._seam.nc.is_closed:  # P5
            await super().drain()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self._io_writer is not None:
            super().close()  # type: ignore[no-untyped-call]

    async def wait_closed(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await super().wait_closed()  # type: ignore[no-untyped-call]
        except TimeoutError:  # P5
            if self._io_writer is not None:
                self._io_writer.transport.abort()

    def write_buffer_bytes(self) -> int:
        """Bytes that wait in user space to be sent."""
        if self._io_writer is None or self._io_writer.transport is None:
            return 0
        return int(self._io_writer.transport.get_write_buffer_size())


class ParserSeam:
    """Stands where nats-py's parser stood.

    Args:
        after_feed: Called after each chunk with its length in bytes.
        is_held_up: Whether `may_read` would wait.
        may_read: Returns when more may be taken in.
        clocks: Of this machine, if no others are handed in.

    Attributes:
        is_busy: A chunk is being taken in, which may have to wait for the disk.
        read_s: When the last one had been, by the monotonic clock.
    """

    def __init__(
        self,
        client: nats.aio.client.Client,
        intake: Intake,
        after_feed: Callable[[int], None],
        is_held_up: Callable[[], bool],
        may_read: Callable[[], Awaitable[None]],
        *,
        clocks: Clocks = MACHINE,
    ) -> None:
        self.nc = client
        self.clocks = clocks
        self._intake = intake
        self._after_feed = after_feed
        self._is_held_up = is_held_up
        self._may_read = may_read
        self._operations: list[tuple[Any, ...]] = []
        self.is_busy = False
        self.read_s = clocks.now_s()

    def reset(self) -> None:
        """A new connection begins: what was half read is gone."""
        self._intake.reset()
        self._operations.clear()

    def take_in(self, data: memoryview) -> bool:
        """Take in one chunk without awaiting anything; whether that was all, or else `parse` has to go on with it.

        Raises:
            ProtocolError: nats-py is to reconnect.
        """
        if self.nc.is_reconnecting:
            return True  # P4
        try:
            self._feed(data)
            return not self._operations and not self._is_held_up()
        except (ProtocolError, OSError):
            raise
        except Exception as error:
            raise _fault(error, len(data)) from error

    async def parse(self, data: bytes | memoryview = b"") -> None:
        """Take in one chunk, do what `take_in` has left. Awaiting here is the back-pressure: nothing is read meanwhile.

        Raises:
            ProtocolError: nats-py then reconnects.
        """
        self.is_busy = True
        try:
            self._feed(data)
            operations, self._operations = self._operations, []
            for operation in operations:
                await self._control(operation)
            await self._may_read()
        except (ProtocolError, OSError):
            raise
        except Exception as error:
            raise _fault(error, len(data)) from error
        finally:
            self.is_busy = False
            self.read_s = self.clocks.now_s()

    def _feed(self, data: bytes | memoryview) -> None:
        try:
            self._operations += self._intake.feed(data, self.clocks.wall_us())
        except IntakeProtocolError as error:
            self._after_feed(len(data))
            raise ProtocolError(str(error)) from error
        self._after_feed(len(data))
        self.read_s = self.clocks.now_s()

    async def _control(self, operation: tuple[Any, ...]) -> None:
        match operation:
            case ("PING",):
                await self.nc._process_ping()
            case ("PONG",):
                await self.nc._process_pong()
            case ("ERR", text):
                if refusal := refusal_in(text):  # nats-py has the subject in lower case, or ends the connection
                    await self.nc._error_cb(refusal)
                else:
                    await self.nc._process_err(text.lower())
            case ("INFO", raw):
                try:
                    info = parse_json(raw)
                except ValueError as error:
                    raise ProtocolError(f"INFO is not JSON: {raw[:80]!r}") from error
                try:
                    await self.nc._process_info(info)
                except (TypeError, KeyError, ValueError, AttributeError) as error:
                    raise ProtocolError(f"INFO that nats-py cannot use: {raw[:80]!r}") from error
            case ("OK",):
                pass


def _fault(error: Exception, byte_count: int) -> ProtocolError:
    """nats-py ends its read loop for good at any error but its own: a reconnect is what heals."""
    log.error("intake.feed_bug", exc_info=error)
    return ProtocolError(f"taking in {byte_count} bytes failed: {error!r}")


def make_client(
    intake: Intake,
    after_feed: Callable[[int], None],
    is_held_up: Callable[[], bool],
    may_read: Callable[[], Awaitable[None]],
    *,
    wide: bool,
    clocks: Clocks = MACHINE,
) -> nats.aio.client.Client:
    """A nats-py client whose messages go to `intake`; see ParserSeam. `wide`: TCP, not WebSocket."""
    client = insist_on_tls(nats.aio.client.Client())
    seam = ParserSeam(client, intake, after_feed, is_held_up, may_read, clocks=clocks)
    client._ps = seam  # type: ignore[assignment]
    client._transport = WideTransport(seam) if wide else SendingWebSocket(seam)
    return client


async def barrier(client: nats.aio.client.Client, timeout_s: float) -> None:
    """Return when the server has answered a PING: all that it sent before has been parsed.

    nats-py writes a PING past the commands that it still holds; an UNSUB among them would come after the barrier.
    Its own `flush` is no help: after a time-out it would take the late answer for an error and stop reading for good.

    Args:
        timeout_s: How long nothing may come. The answer stands behind all that is still on its way, so a large
            backlog, or a disk that holds us up, is waited for.
    Raises:
        TimeoutError: nothing came for so long.
        ConnectionResetError: the connection was lost, and with it the answer.
    """
    flushing = asyncio.ensure_future(client._flush_pending(force_flush=True))
    while not flushing.done():  # whoever flushes may have ended with the connection, and then nobody answers
        await asyncio.wait((flushing,), timeout=LOOK_S)
        if not flushing.done() and not client.is_connected:
            flushing.cancel()
            raise ConnectionResetError("the connection was lost before all was sent that comes before a PING")
    await flushing
    pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    await client._send_ping(pong)
    seam = client._ps
    now_s = (seam.clocks if isinstance(seam, ParserSeam) else MACHINE).now_s
    begun_s = now_s()
    while not pong.done():
        if not client.is_connected or pong not in client._pongs:
            raise ConnectionResetError("the connection was lost before the server had answered a PING")
        busy, read_s = (seam.is_busy, seam.read_s) if isinstance(seam, ParserSeam) else (False, begun_s)
        left_s = max(begun_s, read_s) + timeout_s - now_s()
        if left_s <= 0 and not busy:
            raise TimeoutError(f"nothing came from the server for {timeout_s:g} s")
        await asyncio.wait((pong,), timeout=LOOK_S)
    await asyncio.sleep(0)
