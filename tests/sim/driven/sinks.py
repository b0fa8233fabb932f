"""The real sinks of a driven broker: `PlacedSinks`, coordinator, stages, rounds, and what brokers ask each other.

Simulated are what carries a call (the network of the simulator, JSON both ways) and the threads: each call is on a
fiber, and waits where the real one does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from broker.api.errors import LiftlogError, NotReady, Unavailable, from_problem
from broker.api.stream import COMMITS_STREAM
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.sinks.beside import Companions
from broker.node.sinks.service import (
    CALL_THREADS,
    PARTITION_THREADS,
    PEER_THREADS,
    PlacedSinks,
    Runners,
)
from broker.node.sinks.stages import StageLimits
from broker.node.streams import PlacedStreams
from broker.sinks.ledger import CommitRequest, NamedStage
from tests.sim.driven.loop import SteppedLoop
from tests.sim.driven.running import FiberWaits, SteppedWaiting, Threads
from tests.sim.driven.wire import HELD_MS
from tests.sim.metadata import name_of
from tests.support.sinks import rows_of

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker
    from tests.sim.driven.running import Process

SWEEP_S: Final = 3.0
CLOSED_MS: Final = 100
"""So much later, about, a broker notices that another one is gone."""
Answered = Callable[[Any, LiftlogError | None], None]


class PooledLoop(SteppedLoop):
    """One whose executors are those that it is given, and which ends. `has_ended`: nothing of it goes on."""

    has_ended = False

    def is_closed(self) -> bool:
        return self.has_ended

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        if self.has_ended:
            raise RuntimeError("Event loop is closed")
        return self.call_soon(callback, *args, context=context)

    def _at(self, delay_ms: float, handle: asyncio.Handle) -> None:
        if not self.has_ended:
            super()._at(delay_ms, handle)

    def _run(self, handle: asyncio.Handle) -> None:
        if not self.has_ended:
            super()._run(handle)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)


class SteppedSinks(PlacedSinks):
    """Those of one process. See the module."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.broker = broker = process.broker
        published = broker.cluster.published
        assert published is not None
        waits = FiberWaits(process)
        self._stepped = PooledLoop(process)
        super().__init__(
            broker.name,
            PlacedStreams(
                broker.name, lambda: broker.service.catalog, broker.driver, has_session=lambda: broker.has_session
            ),
            broker.service,
            Companions(
                broker.name,
                broker.service,
                self._companion,
                waits=waits,
                new_id=published.new_id,
                now_us=lambda: broker.wall_us,
            ),
            loop=self._stepped,
            limits=StageLimits(stage_lease_ms=published.lease_ms),
            clock=lambda: broker.wall_us,
            elapsed=lambda: broker.elapsed_us,
            sweep_s=SWEEP_S,
            why_missing=lambda: f"no {COMMITS_STREAM}",
            runners=Runners(
                calls=Threads(process, CALL_THREADS, waits=True),
                answers=Threads(process, PEER_THREADS, waits=True),
                spread=Threads(process, PARTITION_THREADS, waits=True),
                make_loop=lambda step, name: SteppedWaiting(process, step),
                waits=waits,
            ),
        )
        self._peers = OverNetwork(self, published.patience_s())  # type: ignore[assignment]

    def _companion(self, at: Place) -> Partition | None:
        """One that is open here. The checker hears what is asked to go there."""
        found = self.broker.driver.partition(at)
        if found is not None and "trim" not in found.__dict__:

            def trim(before: int) -> Future[None]:
                seen, checker = self.broker.replicas.get(name_of(at)), self.broker.cluster.checker
                if seen is not None:
                    checker.trim_asked(seen, min(before, found.log.state.high_watermark))
                return Partition.trim(found, before)

            found.trim = trim  # type: ignore[method-assign]
        return found

    def handle(self, what: str, args: Mapping[str, Any], answered: Answered) -> None:
        """A request has come."""
        self._stepped.create_task(self._handled(what, args, answered))

    async def _handled(self, what: str, args: Mapping[str, Any], answered: Answered) -> None:
        try:
            said = await getattr(self, f"_on_{what}")(**args)
        except LiftlogError as error:
            answered(None, from_problem(json.loads(json.dumps(error.to_problem()))))
        except RuntimeError:  # it stops, and cuts the connection
            pass
        else:
            answered(json.loads(json.dumps(said)), None)

    def close(self) -> None:
        """As a broker that stops does: HTTP has ended before."""
        self._stepped.has_ended = True
        super().close()

    # -- what drivers ask

    async def _on_open(self, sink: str, owner: str) -> Any:
        return (await self.open(sink, owner)).epoch

    async def _on_stage(self, stream: str, partition: int, values: list[bytes], **part: Any) -> Any:
        self._streams.partition(stream, partition).check_open()  # as the endpoint does
        return await self.stage(stream, partition, [rows_of(values)], **part)

    async def _on_commit(self, sink: str, asked: CommitRequest, stages: list[NamedStage]) -> Any:
        done = await self.commit(sink, asked, stages, {})
        published, last = self.broker.cluster.published, done.state.last
        assert published is not None
        assert last is not None
        published.answered(self.broker, sink, asked.batch_id, last.batch_id, is_done=done.state.is_done)
        return {"is_new": done.is_new}

    async def _on_abort(self, sink: str, stages: list[NamedStage]) -> Any:
        return await self.abort(sink, stages)

    # -- what brokers ask

    async def _on_peer(self, path: str, body: Any) -> Any:
        words = path.split("/")
        if path == "/v1/sinks/silences":
            return {"silences": [asdict(each) for each in await self.silences([tuple(one) for one in body["owners"]])]}
        if words[2] == "sinks":
            return await self.check(words[3], body["epoch"])
        self._streams.partition(words[3], int(words[5]))
        return await self.ask(words[3], int(words[5]), body["incarnation"], body["act"], body["what"])


class OverNetwork:
    """`Peers` of one process: other brokers are asked over the network of the simulator.

    A connection holds up what is sent while its link is cut. It ends with the process that it leads to.
    """

    def __init__(self, sinks: SteppedSinks, patience_s: float) -> None:
        self._sinks = sinks
        self._patience_s = patience_s

    async def ask(
        self,
        address: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        timeout_s: float = 3.0,
    ) -> Any:
        me, loop = self._sinks.broker, self._sinks._stepped
        future, world = loop.create_future(), me.world
        to: Broker = me.cluster.brokers[address.partition(":")[0]]  # type: ignore[assignment]
        process = to.process

        def heard(said: Any, error: LiftlogError | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(said)

        def answered(said: Any, error: LiftlogError | None) -> None:
            self._carry(to.name, me.name, lambda: me.after(0, heard, said, error))

        def arrive() -> None:
            if to.process == process:
                to.asked_of_sinks("peer", args, answered)

        def look() -> None:
            if (process and to.process == process) or not me.cluster.network.connects(me.name, to.name):
                if not future.done():
                    world.after(CLOSED_MS, look)
            else:
                heard(None, gone)

        args = {"path": path, "body": json.loads(json.dumps(body))}
        gone = Unavailable(f"{address}: no answer", address=address, sent=True)
        self._carry(me.name, to.name, arrive)
        loop.call_later(min(timeout_s, self._patience_s), heard, None, gone)
        world.after(CLOSED_MS, look)
        return await future

    def _carry(self, source: str, target: str, act: Callable[[], None]) -> None:
        world, network = self._sinks.broker.world, self._sinks.broker.cluster.network
        if (source, target) in network.cut:
            world.after(HELD_MS, self._carry, source, target, act)
            return
        late_ms = world.rng.uniform(0, network.weather.late_ms) if world.chance(network.weather.late) else 0.0
        world.after(world.rng.expovariate(1 / network.weather.delay_ms) + late_ms, act)

    async def close(self) -> None:
        """Nothing is open."""


def read(broker: Broker, process: Process, timeout_s: float) -> None:
    """As `Catalogs.read`, on a fiber: the controller says how much is committed, and so much is applied here."""
    metadata, until_s, end = broker.cluster.metadata, broker.now_s() + timeout_s, -1
    while broker.now_s() < until_s:
        if end < 0 and metadata.reaches(broker.name) and metadata._is_able(metadata.controller or ""):
            end = len(metadata.log)
        if 0 <= end <= broker.applied:
            return
        process.pause(10)
    raise NotReady("no controller has answered in time", sent=False)
