"""`[liftbridge]`: what it may say, beside what, and what a broker makes of it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from broker.api.errors import InvalidSetting, PortInUse
from broker.config.configuration import load, open_doors
from broker.runtime.dataplane import DataPlane
from broker.serving.http.app import CONNECTIONS, SERVING

CLUSTER = {"cluster.id": "c", "cluster.voters": "broker-0@127.0.0.1:9294"}


def listening(listen: str, **more: Any) -> Any:
    return load(None, {}, {"liftbridge.listen": listen, **more})


def test_it_is_off_and_one_line_opens_it() -> None:
    assert load(None, {}).liftbridge.place is None
    assert listening("127.0.0.1:9292").liftbridge.place == ("127.0.0.1", 9292), (
        "where there is no [grpc] to be in its way"
    )
    assert listening("[::1]:0").liftbridge.place == ("::1", 0)
    assert load(None, {"LIFTLOG_LIFTBRIDGE_LISTEN": "localhost:9292"}).liftbridge.place == ("localhost", 9292)


@pytest.mark.parametrize("listen", ["9292", "127.0.0.1", "127.0.0.1:65536", "http://127.0.0.1:9292", "::1:9292", "a:b"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        listening(listen)
    assert refused.value.key == "liftbridge.listen"


@pytest.mark.parametrize(
    "settings, key",
    [
        ({"liftbridge.listen": "127.0.0.1:9293"}, "liftbridge.listen"),
        ({"liftbridge.listen": "127.0.0.1:9292", **CLUSTER}, "liftbridge.listen"),
        ({"liftbridge.listen": "127.0.0.1:9294", **CLUSTER}, "liftbridge.listen"),
        ({"liftbridge.advertised": "h:1"}, "liftbridge.advertised"),
    ],
)
def test_what_cannot_stand_beside_it_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        load(None, {}, settings)
    assert refused.value.key == key


def test_it_is_a_door_as_the_http_port_is() -> None:
    with pytest.raises(InvalidSetting, match=r"http\.tls_cert"):
        listening("0.0.0.0:9292")
    config = listening("0.0.0.0:9292", insecure=True)
    assert list(open_doors(config)) == ["liftbridge.listen"]
    assert not open_doors(listening("127.0.0.1:9292"))


class Nothing:
    """As much of the application as ports ask for."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()

    def drain(self) -> None:
        self.draining.set()

    def protocol_factory(self, server: web.Server, tls: Any = None) -> Any:
        return server


@pytest.fixture
def bound() -> Iterator[tuple[DataPlane, web.Application]]:
    """A data plane with an application that serves nothing."""
    plane, app = DataPlane(), web.Application()
    nothing: Any = Nothing()
    app[CONNECTIONS] = app[SERVING] = nothing
    plane.bind(app, "127.0.0.1", 0)
    yield plane, app
    plane.stop()


def test_without_the_library_the_error_says_what_to_install(
    bound: tuple[DataPlane, web.Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "h2" or "serving.liftbridge" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "h2", None)
    plane, app = bound
    with pytest.raises(InvalidSetting, match=r"spark-liftlog\[liftbridge\]"):
        plane.bind_liftbridge(app, "127.0.0.1", 0, None, lambda port: ("h", port))


def test_a_port_that_is_taken_is_named(bound: tuple[DataPlane, web.Application]) -> None:
    pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")
    plane, app = bound
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortInUse, match=r"liftbridge\.listen"):
        plane.bind_liftbridge(app, "127.0.0.1", taken.getsockname()[1], None, lambda port: ("h", port))
