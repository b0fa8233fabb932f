"""The port for other brokers, with bulk behind it and no streams; and callers whose bytes a test makes up."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

from broker.link import bulk
from broker.link.bulk import BulkServer
from broker.link.codec import Ended, LinkFrame, Said, decode
from broker.link.door import Door
from broker.link.framed import Framed
from broker.link.tls import LinkTls


class BulkDoor(BulkServer):
    """`told_port` is its door's."""

    def __init__(self, refuse: Callable[[str, str, str], None], tls: LinkTls | None = None) -> None:
        super().__init__(tls)
        self.tls = tls
        self.door = Door({bulk.PURPOSE: self.serve}, refuse, tls)
        self.told_port = self.door.start("127.0.0.1", 0)

    def stop(self) -> None:
        self.door.close()
        super().stop()
        assert self.door.stop(60)


@contextlib.contextmanager
def bulk_door(refuse: Callable[[str, str, str], None], tls: LinkTls | None = None) -> Iterator[BulkDoor]:
    made = BulkDoor(refuse, tls)
    try:
        yield made
    finally:
        made.stop()


class RawCall:
    """A connection to the port of a broker: what is said first, and frames after that."""

    def __init__(self, connection: socket.socket, first: bytes) -> None:
        self.framed = Framed(connection)
        self.is_over = False
        with contextlib.suppress(OSError):
            self.framed.send(first)

    def say(self, *frames: LinkFrame) -> None:
        """The other side may have ended it."""
        with contextlib.suppress(OSError):
            for frame in frames:
                self.framed.write(frame)

    def next(self) -> LinkFrame:
        """A frame that is no heartbeat. EOFError: it has ended."""
        while True:
            try:
                frame = self.framed.read(1 << 30)
            except OSError as error:
                raise EOFError(str(error)) from error
            if frame is None:
                raise EOFError("it has ended")
            if frame.head:
                return LinkFrame(frame.head, frame.head_crc, bytes(frame.data))

    def frames(self) -> Iterator[LinkFrame]:
        """All until it ends."""
        with contextlib.suppress(EOFError):
            while True:
                yield self.next()

    def end(self) -> tuple[str, str]:
        """Wait until it ends. Status and text of the last frame, if there is one."""
        said: list[Said] = [decode(frame) for frame in self.frames()]
        self.close()
        last = said[-1] if said else None
        return (last.status, last.text) if isinstance(last, Ended) else ("", "")

    def close(self) -> None:
        self.framed.end()
        self.framed.close()
