"""The HTTP side of a driven broker, as far as streams are changed by it: the real endpoints, `PlacedControl` and
`PlacedStreams`, on a loop that the schedule steps. Requests come over the network of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from broker.api import http
from broker.api.errors import LiftlogError
from broker.config.settings import Config
from broker.control.operating.changes import PlacedControl
from broker.node.streams import PlacedStreams
from broker.serving.endpoints import changes, streams
from broker.serving.http.access import NOBODY, Asking, AuthRules, Gate, access_now
from tests.sim.driven.loop import SteppedLoop

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker
    from tests.sim.driven.running import Process

ASK_S: Final = 3.0
"""As `peers.ASK_S`."""
ENDPOINTS: Final[Mapping[str, Any]] = {
    "create": streams.create,
    "alter": streams.alter,
    "delete": streams.delete,
    "pause": changes.pause,
    "resume": changes.resume,
    "read_only": changes.set_read_only,
    "grow": changes.add_partitions,
    "describe": streams.describe_one,
}
Answered = Callable[[dict[str, Any], LiftlogError | None], None]


class Http:
    """See the module. `streams`: as of the broker."""

    def __init__(self, process: Process) -> None:
        broker, cluster_changes = process.broker, process.broker.cluster.changes
        assert cluster_changes is not None
        self._broker, self._service = broker, broker.service
        self._loop = SteppedLoop(process)
        self._gate = Gate(  # it is off, and judges nobody
            AuthRules(), lambda: broker.service.catalog.access, lambda: (), lambda: broker.wall_us * 1_000, _known
        )
        self.streams = PlacedStreams(
            broker.name, lambda: broker.service.catalog, broker.driver, has_session=lambda: broker.has_session
        )
        control = PlacedControl(
            Config(broker_id=broker.name),
            broker.service,
            self.streams,
            loop=self._loop,
            on_change=lambda: None,
            may_change=lambda: broker.has_session,
            new_id=cluster_changes.new_id,
            wall_us=lambda: broker.wall_us,
        )
        control.begin()
        backend = SimpleNamespace(
            broker_id=broker.name,
            brokers=self._brokers,
            position=self._position,
            stream=self.streams.info,
            partitions=self.streams.partitions,
            whereabouts=self.streams.whereabouts,
            uncaptured=lambda info: [],
            create_stream=control.create_stream,
            alter_stream=control.alter_stream,
            set_stream_state=control.set_stream_state,
            add_partitions=control.add_partitions,
            delete_stream=control.delete_stream,
        )
        self._serving = cast(
            Any,
            SimpleNamespace(
                backend=backend,
                peers=SimpleNamespace(ask_all=self._ask_all),
                names=SimpleNamespace(admit=_admit),
                json_object=_body,
                asked=_asked,
                json_answer=_answer,
            ),
        )

    def handle(
        self, what: str, stream: str, body: Mapping[str, Any], answered: Answered, *, by: str = "", position: int = 0
    ) -> None:
        """A request has come. `by`: of that broker, which is so far."""
        headers = {http.ASKED_BY: by, http.POSITION: f"{position}"} if by else {}
        request = SimpleNamespace(match_info={"stream": stream}, headers=headers, body=dict(body))
        self._loop.create_task(self._handled(what, cast(Any, request), answered))

    async def _handled(self, what: str, request: Any, answered: Answered) -> None:
        access_now.set(Asking(self._gate, NOBODY, is_judged=False, is_refused=False))
        try:
            said = await ENDPOINTS[what](self._serving, request, {})
        except LiftlogError as error:
            answered({}, error)
        else:
            answered(said if isinstance(said, dict) else {}, None)

    # -- what the endpoints ask for

    async def _position(self) -> int:
        return self._broker.applied

    def _brokers(self) -> list[dict[str, Any]]:
        known = self._service.catalog.brokers.values()
        return [
            {"id": each.broker_id, "http": each.http, "live": each.is_live, "session_ms": each.session_ms}
            for each in known
        ]

    async def _ask_all(
        self,
        addresses: Iterable[str],
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        position: int = 0,
    ) -> list[Any]:
        """As `Peers.ask_all`: the answers of those that give one within `ASK_S`."""
        me, network = self._broker, self._broker.cluster.network
        asked = [(address.partition(":")[0], self._loop.create_future()) for address in sorted(set(addresses))]
        for name, future in asked:

            def answered(
                said: dict[str, Any], error: LiftlogError | None, name: str = name, future: Any = future
            ) -> None:
                network.send(name, me.name, me.after, 0, self._heard, future, said, error)

            to = cast("Broker", me.cluster.brokers[name])
            network.send(me.name, name, to.asked, "describe", path.rpartition("/")[2], {}, answered, me.name, position)
            self._loop.call_later(ASK_S, self._heard, future, {}, None)
        found = [await future for _, future in asked]
        return [each for each in found if each]

    @staticmethod
    def _heard(future: Any, said: dict[str, Any], error: LiftlogError | None) -> None:
        if not future.done():
            future.set_result(said if error is None else {})


async def _admit(*_: object) -> None:
    """Nobody is at a limit."""


async def _known() -> None:
    raise AssertionError("nobody is judged")


async def _body(request: Any, _: int) -> dict[str, Any]:
    return dict(request.body)


async def _asked(request: Any, cls: Any) -> Any:
    return cls(**request.body)


async def _answer(make: Callable[..., Any], *args: Any, **_: Any) -> Any:
    return make(*args)
