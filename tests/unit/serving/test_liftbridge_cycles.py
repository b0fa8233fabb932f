"""Calls of Liftbridge's clients leave nothing to Python's search for cycles, which a broker makes rarely.

Method: grpcio's own cycles are in the same process, so what is counted is what the broker made for a call.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.liftbridge.call import Call
from broker.serving.liftbridge.door import WayIn, Within
from tests.support.liftbridge import Opened, client_of, opened
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server


@pytest.fixture
def port(server: Server) -> Iterator[Opened]:
    with opened(server) as port, client_of(port.port) as client:
        client.call("CreateStream", name="s", subject="s")
        assert server.api.append("s", values(100, 8_000)).status == 200
        yield port


def left_by(port: Opened, act: Callable[[], None]) -> list[str]:
    """What the broker has left to the search of what it made for some calls."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        act()
        eventually(lambda: not any(each._tasks for each in port.served._open), what="the end of the calls")
        gc.collect()
        return [type(each).__name__ for each in gc.garbage if _is_of_a_call(each)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _is_of_a_call(each: Any) -> bool:
    is_frame = isinstance(each, FrameType) and "broker/serving" in each.f_code.co_filename
    return is_frame or isinstance(each, Call | WayIn | Within)


def test_who_takes_nothing_and_goes_leaves_nothing(port: Opened) -> None:
    """H9 of multiplexed.py. What was read for it is far more than its window."""

    def act() -> None:
        for _ in range(5):
            with client_of(port.port) as client:
                call = client.subscribe(stream="s", start=pb.EARLIEST)
                assert next(call) == pb.Record()
                call.cancel()

    assert left_by(port, act) == []
