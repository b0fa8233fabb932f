"""Liftbridge's API on a server of the tests, and a client of it: grpcio, with the messages of broker/api/proto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.http.tls import TlsContexts
from tests.unit.serving.server import Server

UNARY = {
    "CreateStream": (pb.CreateStream, pb.Empty),
    "DeleteStream": (pb.DeleteStream, pb.Empty),
    "PauseStream": (pb.PauseStream, pb.Empty),
    "SetStreamReadonly": (pb.SetStreamReadonly, pb.Empty),
    "FetchMetadata": (pb.FetchMetadata, pb.Metadata),
    "FetchPartitionMetadata": (pb.FetchPartition, pb.PartitionAnswer),
    "Publish": (pb.Publish, pb.Published),
    "PublishToSubject": (pb.PublishToSubject, pb.PublishedToSubject),
    "JoinConsumerGroup": (pb.JoinGroup, pb.JoinedGroup),
    "LeaveConsumerGroup": (pb.LeaveGroup, pb.Empty),
    "FetchConsumerGroupAssignments": (pb.FetchAssignments, pb.Assignments),
    "ReportConsumerGroupCoordinator": (pb.ReportCoordinator, pb.Empty),
    "SetCursor": (pb.SetCursor, pb.Empty),
    "FetchCursor": (pb.FetchCursor, pb.Cursor),
}
"""Calls with one message each way: what is asked, and what is answered."""


class Client:
    """Calls over one channel."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.channel, self._metadata = channel, list(metadata)

    def call(self, name: str, /, *, timeout_s: float | None = 30, **fields: Any) -> Any:
        """Ask, by the fields of the request. Raises grpc.RpcError."""
        asked, answered = UNARY[name]
        method = self.channel.unary_unary(
            f"/proto.API/{name}",
            request_serializer=asked.SerializeToString,
            response_deserializer=answered.FromString,
        )
        return method(asked(**fields), timeout=timeout_s, metadata=self._metadata)

    def refusal(self, name: str, /, **fields: Any) -> tuple[str, str]:
        """The code and the text of the refusal."""
        try:
            self.call(name, **fields)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError(f"{name} was not refused")

    def subscribe(self, **fields: Any) -> Any:
        """The call, and what it brings: an iterator."""
        method = self.channel.unary_stream(
            "/proto.API/Subscribe",
            request_serializer=pb.Subscribe.SerializeToString,
            response_deserializer=pb.Record.FromString,
        )
        return method(pb.Subscribe(**fields), metadata=self._metadata, timeout=30)

    def publish_async(self, requests: Iterator[Any]) -> Any:
        """The answers, as they come."""
        method = self.channel.stream_stream(
            "/proto.API/PublishAsync",
            request_serializer=pb.Publish.SerializeToString,
            response_deserializer=pb.Published.FromString,
        )
        return method(requests, metadata=self._metadata, timeout=30)


class Opened:
    """The port on a server that runs."""

    def __init__(self, server: Server, tls: TlsContexts | None = None) -> None:
        self._server = server
        self.port = server.call(self._open(tls))

    async def _open(self, tls: TlsContexts | None) -> int:
        from broker.serving.liftbridge.server import LiftbridgePort

        runner = self._server._runner
        assert runner.server is not None
        self.served = LiftbridgePort(self._server.app, runner.server, tls)
        listening = await self._server.loop.create_server(self.served.protocol_factory(), "127.0.0.1", 0)
        self._listening = listening
        port = int(listening.sockets[0].getsockname()[1])
        self.served.take_place(("127.0.0.1", port))
        return port

    async def _close(self) -> None:
        self._listening.close()
        await self.served.close()

    def close(self) -> None:
        self._server.call(self._close())


@contextmanager
def opened(server: Server, tls: TlsContexts | None = None) -> Iterator[Opened]:
    """The port for a while."""
    port = Opened(server, tls)
    try:
        yield port
    finally:
        port.close()


@contextmanager
def client_of(
    port: int, *, host: str = "127.0.0.1", credentials: Any = None, metadata: Sequence[tuple[str, str]] = ()
) -> Iterator[Client]:
    """A client, in plain or with credentials of TLS."""
    address = f"{host}:{port}"
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        grpc.insecure_channel(address, options)
        if credentials is None
        else grpc.secure_channel(address, credentials, options)
    )
    with channel:
        yield Client(channel, metadata)
