"""Connections of HTTP/2, as gRPC speaks it: h2 decides what frames mean, this moves bytes and keeps to limits.

    accepted (TLS: after the handshake) ──► is there room? ──► preface, settings ──► calls, many at once ──► GOAWAY

They count among the connections of HTTP, by the same limits (`connections.N4`, `connections.N10`): one without a call
is idle, and the first to go for a new one. So is one whose calls all wait for their client: who begins calls, and says
or takes nothing, keeps nobody else out.

H1  What a client may have h2 keep is bounded: `STREAMS_MAX` calls at once, headers of `HEADERS_BYTES_MAX`, frames of
    `FRAME_BYTES_MAX`. h2 would judge a frame's length once it has all of it (`Frames`). It would also keep each
    setting that a client makes up, and a table of sent headers as long as its client allows, which it searches one by
    one.
H2  A call that its client resets is under way until its task has ended. A client with `TASKS_MAX` of those under way is
    cut: whoever opens calls and resets them, again and again, costs no more than that.
H3  A client sends no more than the window of a stream ahead of what is taken. What all clients have sent and nobody is
    done with is bounded by `HELD_BYTES_MAX`: beyond it the longest call of the connection that holds most ends with
    UNAVAILABLE. So who sends messages that never end keeps nobody else out.
H4  While a client takes nothing, nothing of what it sends is read: answers to pings and settings cannot pile up.
H5  What is no HTTP/2 ends the connection, by GOAWAY, with one line in the log.
H6  The call of a client that has been given bytes and takes none for `sending.STALLED_S` ends. What is closed is gone
    in `closing.LINGER_S`, also if its client does not take the end (`connections.N9`).
H7  Who is told that the connection ends, or says so, still gets the answers to what is under way. h2 sends nothing
    behind a GOAWAY, whoever says it, so these go past it.
H8  Others have the loop after each `READ_BYTES`: small frames are what costs most. (Over TLS it is `tls.BUFFER_BYTES`.)
H9  A call that has ended leaves nothing to the search for cycles. Its task knows how it was cancelled, and by that all
    that the call held, such as what was read for a client that took nothing: megabytes, until a search comes. Nor does
    its connection know that it waited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from broker.serving.http.closing import LINGER_S
from broker.serving.http.sending import STALLED_S
from broker.serving.liftbridge.call import Call, Headers
from broker.serving.liftbridge.frames import (
    BUFFER_BYTES,
    CONNECTION_WINDOW_BYTES,
    FRAME_BYTES_MAX,
    GOODBYE,
    HEADERS_BYTES_MAX,
    HELD_BYTES_MAX,
    READ_BYTES,
    SENT_TABLE_BYTES,
    SETTINGS_MAX,
    STREAM_WINDOW_BYTES,
    STREAMS_MAX,
    TASKS_MAX,
    Frames,
)
from broker.serving.liftbridge.statuses import Code

if TYPE_CHECKING:
    from broker.api.errors import LiftlogError
    from broker.serving.http.addresses import CountedAddress
    from broker.serving.http.connections import Connections
    from broker.serving.http.rights import LastCaller

log = logging.getLogger(__name__)


_SETTINGS: Final = {
    SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
    SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
    SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
    SettingCodes.MAX_HEADER_LIST_SIZE: HEADERS_BYTES_MAX,
    SettingCodes.ENABLE_PUSH: 0,
}


class Port(Protocol):
    """What connections belong to.

    Attributes:
        held: Bytes that clients have sent, of all connections, and that nobody has taken (H3).
    """

    held: int

    def came(self, connection: Http2Connection) -> bool:
        """A connection has begun. False: none may any more."""
        ...

    def left(self, connection: Http2Connection) -> None:
        """It is closed."""

    def make_room(self) -> bool:
        """End the call that holds most (H3). False: none holds anything."""
        ...

    async def answer(self, connection: Http2Connection, call: Call) -> None:
        """Answer a call."""


class Http2Connection(asyncio.Protocol):
    """One connection. On the loop that serves.

    Args:
        owner: Counts it.
    """

    can_hear = False

    def __init__(self, owner: Connections, port: Port) -> None:
        self._owner, self._port = owner, port
        self._frames = Frames()
        self.transport: asyncio.Transport | None = None
        self.is_counted = self.is_extra = False
        self.place: CountedAddress | None = None
        self.remembered: LastCaller | None = None
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._streams: dict[int, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._waiting_count = 0
        self._is_full = self._is_draining = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self.held = 0

    # --- the connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._owner.admit(self, transport):
            return
        if self.is_extra or not self._port.came(self):  # that room is for health (`connections.N5`)
            self._owner.leave(self)
            transport.abort()
            return
        self.transport = transport
        transport.set_write_buffer_limits(BUFFER_BYTES)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]  # asyncio's own: so much is read at once (H8)
        self._owner.await_head(self)
        self._h2.local_settings = Settings(client=False, initial_values=_SETTINGS)
        self._h2.decoder.max_header_list_size = HEADERS_BYTES_MAX
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - 65_535)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.leave(self)
        self.transport = None
        self._stop_idle_timer()
        if self._end_timer is not None:
            self._end_timer.cancel()
        for stream in list(self._streams.values()):
            stream.gone()
        for task in self._tasks:
            task.cancel()
        self._wake()
        self._port.left(self)

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(self._frames.feed(data))
            self._bound_settings()
        except (H2Error, ValueError, KeyError) as error:  # h2 lets some out of other classes
            remote = None if self.transport is None else self.transport.get_extra_info("peername")
            log.info("liftbridge.malformed error=%r remote=%s", str(error)[:200], remote)
            self.flush()
            self._close()
            return
        for event in events:
            self._happened(event)
        self.flush()
        if self._frames.has_gone_away and not self._is_draining:
            self._is_draining = True
            self._quiet()

    def _bound_settings(self) -> None:
        """H1. Raises ValueError."""
        encoder = self._h2.encoder
        if encoder.header_table_size > SENT_TABLE_BYTES:
            encoder.header_table_size = SENT_TABLE_BYTES
        if max(len(self._h2.remote_settings), len(encoder.table_size_changes)) > SETTINGS_MAX:
            raise ValueError("too many settings")

    def _happened(self, event: object) -> None:
        match event:
            case DataReceived():
                self._came(int(event.stream_id), bytes(event.data), int(event.flow_controlled_length))
            case RequestReceived():
                self._begin(int(event.stream_id), list(event.headers))
            case StreamEnded():
                if (stream := self._streams.get(int(event.stream_id))) is not None:
                    stream.call.ended()
            case StreamReset():
                if (stream := self._streams.get(int(event.stream_id))) is not None:
                    stream.gone()
            case WindowUpdated():
                self._wake()
            case RemoteSettingsChanged():
                self._owner.head_done(self)
                self._wake()

    def pause_writing(self) -> None:
        self._is_full = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        if self.transport is not None:
            self.transport.resume_reading()
        self._wake()

    def flush(self) -> None:
        """Hand over what h2 has to send."""
        data: bytes = self._h2.data_to_send()
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def _close(self) -> None:
        if self.transport is not None and self._end_timer is None:
            self._end_timer = asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)  # H6
            self.transport.close()

    def drain(self) -> None:
        """Take no more calls; close when the last one has ended."""
        if self.transport is None or self._is_draining:
            return
        self._is_draining = True
        if self._tasks:  # H7
            self.transport.write(GOODBYE + self._h2.highest_inbound_stream_id.to_bytes(4) + bytes(4))
        else:
            self._h2.close_connection()
            self.flush()
        self._quiet()

    def stop(self) -> None:
        """`drain`, and calls that wait for their client end (`call.C4`)."""
        self.drain()
        for stream in self._streams.values():
            stream.call.stop()

    async def ended(self) -> None:
        """Return when no call is under way."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def cut(self) -> None:
        """Close it now."""
        if self.transport is not None:
            self.transport.abort()

    # --- as one of `Connections` ----------------------------------------------------------------------------------

    def cut_idle(self, why: LiftlogError | None) -> None:
        """Its place goes to a new one."""
        self.drain()
        self._close()

    def cut_slow(self) -> None:
        """No settings came in time."""
        self._owner.meters.timeouts.labels("head").inc()
        self.cut()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """One more of its calls waits for its client."""
        self._waiting_count += 1
        self._rest_or_work()
        try:
            yield
        finally:
            self._waiting_count -= 1
            self._rest_or_work()

    def _rest_or_work(self) -> None:
        """Of one that has calls under way."""
        if not self._tasks or self.transport is None:
            return
        if self._waiting_count >= len(self._tasks):
            self._owner.rests(self)
        else:
            self._owner.works(self)

    def _quiet(self) -> None:
        """If no call is under way: it is idle."""
        self._rest_or_work()
        if self._tasks or self.transport is None:
            return
        if self._is_draining:
            self._close()
            return
        self._owner.rests(self)
        self._stop_idle_timer()
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(self._owner.limits.idle_timeout_s, self.drain)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    # --- calls ------------------------------------------------------------------------------------------------------

    def _begin(self, stream_id: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self._is_draining:
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        if len(self._tasks) >= TASKS_MAX:  # H2
            log.info("liftbridge.too_many_calls remote=%s", self.place.address if self.place else None)
            self._is_draining = True  # what else came with this is refused without a word
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self.flush()
            self._close()
            return
        named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        metadata = dict(named)
        stream = _Stream(self, stream_id)
        authorization = tuple(value for name, value in named if name == "authorization")
        call = stream.call = Call(stream, metadata.get(":path", ""), metadata, authorization)
        self._streams[stream_id] = stream
        self._stop_idle_timer()
        self._owner.works(self)
        task = stream.task = asyncio.get_running_loop().create_task(self._port.answer(self, call))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._answered(stream_id, done))

    def _answered(self, stream_id: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            stream.release()
            stream.end()
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ConnectionError):
            log.error("liftbridge.bug", exc_info=error)
            self._reset(stream_id, ErrorCodes.INTERNAL_ERROR)
        self._quiet()

    def _came(self, stream_id: int, data: bytes, byte_count: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:  # its call has ended
            self.acknowledge(stream_id, byte_count)
            return
        stream.owed += byte_count
        self.count(stream, byte_count)
        while self._port.held > HELD_BYTES_MAX and self._port.make_room():  # H3
            pass
        stream.call.feed(data, byte_count)

    def give_up(self) -> None:
        """End the call that holds most (H3)."""
        stream = max(self._streams.values(), key=lambda each: each.held)
        stream.call.end(Code.UNAVAILABLE, "this broker holds too much that clients have sent: try again")
        self.count(stream, -stream.held)
        stream.gone()

    def count(self, stream: _Stream, byte_count: int) -> None:
        """So much more of a stream is held."""
        stream.held += byte_count
        self.held += byte_count
        self._port.held += byte_count

    def acknowledge(self, stream_id: int, byte_count: int) -> None:
        """The client may send so much more."""
        if byte_count and self.transport is not None:
            try:
                self._h2.acknowledge_received_data(byte_count, stream_id)
            except H2Error:  # the stream is closed
                return
            self.flush()

    # --- what goes --------------------------------------------------------------------------------------------------

    def send_headers(self, stream_id: int, headers: Headers, *, is_last: bool) -> None:
        """Does nothing on a stream that is closed."""
        if self.transport is None:
            return
        try:
            self._h2.send_headers(stream_id, headers, end_stream=is_last)
            if is_last and stream_id in self._streams and not self._streams[stream_id].call.has_ended:
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)  # RFC 9113, 8.1: nobody reads the rest
        except H2Error:
            return
        self.flush()

    async def send(self, stream_id: int, data: bytes) -> None:
        """By the windows of stream and connection. Raises ConnectionError."""
        view = memoryview(data)
        while view:
            async with asyncio.timeout(STALLED_S):  # H6
                size = await self._room(stream_id)
            self._h2.send_data(stream_id, bytes(view[:size]))
            view = view[size:]
            self.flush()

    async def _room(self, stream_id: int) -> int:
        while True:
            if self.transport is None or self.transport.is_closing():
                raise ConnectionResetError("the client went away")
            try:
                size = int(min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size))
            except H2Error:
                raise ConnectionResetError("the client has ended the call") from None
            if size > 0 and not self._is_full:
                return size
            moved = asyncio.get_running_loop().create_future()
            self._waiting.append(moved)
            try:
                with self.waiting():
                    await moved
            except asyncio.CancelledError:  # its call has ended (H9)
                if moved in self._waiting:
                    self._waiting.remove(moved)
                raise

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for moved in waiting:
            if not moved.done():
                moved.set_result(None)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        if self.transport is not None:
            try:
                self._h2.reset_stream(stream_id, code)
            except H2Error:
                return
            self.flush()


class _Stream:
    """The stream of one call."""

    call: Call
    task: asyncio.Task[None] | None = None

    def __init__(self, connection: Http2Connection, number: int) -> None:
        self._connection = connection
        self.id = number
        self.held = self.owed = 0

    async def send(self, data: bytes) -> None:
        await self._connection.send(self.id, data)

    def send_headers(self, headers: Headers, *, is_last: bool) -> None:
        self._connection.send_headers(self.id, headers, is_last=is_last)

    def acknowledge(self, byte_count: int) -> None:
        self.owed -= byte_count
        self._connection.acknowledge(self.id, byte_count)

    def waiting(self) -> AbstractContextManager[None]:
        return self._connection.waiting()

    def freed(self, byte_count: int) -> None:
        self._connection.count(self, -min(byte_count, self.held))

    def gone(self) -> None:
        """Nobody waits for the answer."""
        if self.task is not None:
            self.task.cancel()

    def end(self) -> None:
        """The call has ended (H9)."""
        self.task = None
        del self.call

    def release(self) -> None:
        """Nothing of it is held."""
        self.freed(self.held)
        self.acknowledge(self.owed)
