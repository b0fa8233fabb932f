"""A broker that is alone, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from broker.config.configuration import Config
from broker.intake.driver import IntakeDriver
from broker.runtime.alone import Alone
from broker.runtime.clustered import ClusterBroker

CHANGES = (
    "create_stream",
    "alter_stream",
    "set_stream_state",
    "add_partitions",
    "trim_stream",
    "delete_stream",
    "raise_fence",
    "register_producer",
    "change_group",
)


def lone_broker(config: Config, intake: IntakeDriver | None = None) -> ClusterBroker:
    """One that has not begun. Changes are made on the data plane's loop, as HTTP makes them: what is applied wakes who
    waits there.

    Args:
        intake: In place of its own.
    """

    class Lone(ClusterBroker):
        def _made_intake(self) -> IntakeDriver:
            return intake or super()._made_intake()

    broker = Lone(config, Alone)
    for name in CHANGES:
        setattr(broker, name, _on_its_loop(broker, getattr(broker, name)))
    return broker


def _on_its_loop(
    broker: ClusterBroker, change: Callable[..., Coroutine[Any, Any, Any]]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def made(*args: Any, **options: Any) -> Any:
        loop = broker._dataplane.loop
        if loop is asyncio.get_running_loop():
            return await change(*args, **options)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(change(*args, **options), loop))

    return made
