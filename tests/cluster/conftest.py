"""One nats-server and one broker for the tests that only add streams to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.support.processes import BrokerProcess, NatsServer, running


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, BrokerProcess]]:
    with running(tmp_path_factory.mktemp("cluster")) as both:
        yield both


@pytest.fixture(scope="module")
def nats_server(pair: tuple[NatsServer, BrokerProcess]) -> NatsServer:
    return pair[0]


@pytest.fixture(scope="module")
def broker(pair: tuple[NatsServer, BrokerProcess]) -> BrokerProcess:
    return pair[1]


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A stream name that no other test has."""
    return f"s{next(_numbers)}"


@pytest.fixture
def create(broker: BrokerProcess, name: str) -> Callable[..., dict[str, object]]:
    def make(**settings: object) -> dict[str, object]:
        answer: dict[str, object] = broker.request("POST", "/v1/streams", {"name": name, **settings})
        return answer

    return make
