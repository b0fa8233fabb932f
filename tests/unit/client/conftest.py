"""One real server for all tests of the client that want one: serving over real logs on a temporary folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from broker.client.client import Client, connect
from tests.unit.serving.server import Server, running

_number = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server"), body_bytes_max=64 << 20) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(f"127.0.0.1:{server.port}", deadline_s=60) as client:
        yield client


@pytest.fixture
def new_stream(client: Client) -> Callable[..., str]:
    """Creates a stream under a name of its own."""

    def create(**settings: object) -> str:
        return client.create_stream(f"stream-{next(_number)}", **settings).name

    return create
