"""Sinks as the HTTP API sees them.

    open, commit, ... ─► the coordinator: whoever leads `__commits` ─┬─► the stages of partitions that are led here
                                                                     └─► over HTTP those of the others
    a part of a stage ─► the leader of its partition ─► may this epoch stage? ─► the coordinator

K1  The leader of `__commits` alone answers drivers and people; another broker that is asked names it.
K2  The leader of `__commits` finishes what was decided: it looks every `ROUND_S`, without anybody asking.
K3  Nothing is let go of a partition that has a companion while its pins are not known here (`floor`).
K4  A stream is gone for a decision if a catalog says so that has all that was acknowledged before. This broker's own
    may be behind: of a stream that was made again it may know the former one.
K5  A broker that a coordinator asks asks nobody: pins, groups and checks wait for replicas, never for each other.
K6  Whether an epoch may stage is looked up where its coordinator is here. Of another broker it is asked once in
    `CHECKED_S`: a commit judges again (`ledger.D4`), and what nobody may commit expires.
K7  One leadership has one table of stages, and one ledger: a thread that has looked long ago does not bring back what
    was there before. Stages of a partition that are found anew, as their companion was opened again, share the lock
    under which groups are appended with those from before (`stages.G3`).
K8  Signs of life of owners go to the coordinator alone: a broker whose partition is full asks it who is silent. One
    of an older release cannot tell: then nobody is.
K9  A broker is waited for while it leads what it was asked about. The question goes to the next leader, with the next
    round or the driver's next try.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, Unpack

from broker.api.certificate_faults import Tell, tell_nobody
from broker.api.errors import LiftlogError, NotLeader, NotReady, StaleIncarnation, UnknownPartition, UnknownStream
from broker.api.stream import COMMITS_STREAM
from broker.common.elapsed import elapsed_us
from broker.common.looping import MakeLoop, ThreadLoop
from broker.common.waiting import THREADS, Waits
from broker.metadata.catalog import Catalog
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.sinks.coordinator import Sinks, renew_ms
from broker.node.sinks.places import StagePlaces
from broker.node.sinks.questions import RemoteStages, answer, question_of
from broker.node.sinks.room import make_all_durable, put_with_room
from broker.node.sinks.rounds import SinkRounds
from broker.node.sinks.stages import StageLimits, StageStore
from broker.node.sinks.stores import Stages
from broker.node.streams import PlacedStreams
from broker.node.wiring import CatalogService
from broker.serving.http.peers import Peers
from broker.serving.http.tls import TlsContexts
from broker.serving.threads import Threads
from broker.sinks.notes import StagePart
from broker.sinks.silence import Owner, Silence
from broker.storage.rows import Measured

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CALL_THREADS: Final = 8
WAIT_S: Final = 10.0
"""So long a driver's first stage waits for the companion; the first election may take 5 s."""
PEER_THREADS: Final = 8
PARTITION_THREADS: Final = 8
ROUND_S: Final = 2.0
LOOK_S: Final = 0.5
CHECKED_S: Final = 1.0
CHECK_TIMEOUT_S: Final = 5.0
READ_S: Final = 5.0
REMEMBERED: Final = 10_000
COMMITS: Final = (COMMITS_STREAM, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runners:
    """What runs the sinks of a broker, handed in.

    Attributes:
        calls: For drivers and people.
        answers: For other brokers (K5).
        spread: For what one call does in several partitions at once.
        make_loop: Makes the loop of the rounds.
    """

    calls: Executor
    answers: Executor
    spread: Executor
    make_loop: MakeLoop
    waits: Waits

    @classmethod
    def of_threads(cls) -> Runners:
        """Those of a broker."""
        return cls(
            calls=Threads(CALL_THREADS, name="sink"),
            answers=Threads(PEER_THREADS, name="sink-peer"),
            spread=Threads(PARTITION_THREADS, name="sink-partition"),
            make_loop=ThreadLoop,
            waits=THREADS,
        )


class _Over(Exception):
    """What was asked is another broker's to answer by now (K9)."""


def _close(store: StageStore) -> None:
    try:
        store.close()
    except (LiftlogError, OSError) as error:  # its files are closed, without a clean mark
        log.warning("partition.close_failed partition=%s error=%s", store, error)


class PlacedSinks:
    """See the module. Implements `SinksView` and `stores.Stores`.

    Args:
        companions: Finds the stages of a partition that is led here.
        loop: The data plane's, for questions to other brokers.
        clock: Microseconds since 1970 UTC.
        elapsed: As `Tenure` takes it.
        sweep_s: So often stages and sinks are looked after.
        why_missing: Why there is no `__commits` yet.
        tell: Of brokers whose certificates are not believed where they are asked.

    Attributes:
        counts: Calls by their outcome, of all the times that this broker led `__commits`.
    """

    def __init__(
        self,
        me: str,
        streams: PlacedStreams,
        service: CatalogService,
        companions: StagePlaces,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: StageLimits,
        clock: Callable[[], int],
        elapsed: Callable[[], int] = elapsed_us,
        sweep_s: float,
        why_missing: Callable[[], str],
        runners: Runners,
        tls: TlsContexts | None = None,
        peer_key: bytes | None = None,
        tell: Tell = tell_nobody,
    ) -> None:
        self._me = me
        self._streams = streams
        self._service = service
        self._companions = companions
        self._loop = loop
        self._limits = limits
        self._clock, self._elapsed = clock, elapsed
        self._sweep_s = sweep_s
        self._why_missing = why_missing
        self._peers = Peers(me, tls, peer_key, tell)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self._coordinators: dict[Partition, Sinks] = {}
        self._stores: dict[Place, dict[tuple[Partition, Partition], StageStore]] = {}  # K7
        self._checked: dict[tuple[str, int], float] = {}
        self._calls, self._answers, self._spread = runners.calls, runners.answers, runners.spread
        self._waits = runners.waits
        self._is_stopping = threading.Event()
        self._rounds = runners.make_loop(self._round, "sinks")
        self._swept_s = self._waits.now_s()
        self.open, self.states = self._ask_sinks(Sinks.open), self._ask_sinks(Sinks.states)
        self.describe, self.commit = self._ask_sinks(Sinks.describe), self._ask_sinks(Sinks.commit)
        self.abort, self.reset = self._ask_sinks(Sinks.abort), self._ask_sinks(Sinks.reset)
        self.adopt, self.delete = self._ask_sinks(Sinks.adopt), self._ask_sinks(Sinks.delete)
        self.end = self._ask_sinks(Sinks.end)
        self.renew, self.described = self._ask_sinks(Sinks.renew), self._ask_sinks(Sinks.described)
        self.stage = self._in_thread(self._calls, self._stage)
        self.stage_bundle = self._in_thread(self._calls, self._stage_bundle)
        self.ask, self.check = self._in_thread(self._answers, self._answer), self._in_thread(self._answers, self._check)
        self.silences = self._in_thread(self._answers, lambda owners: self.coordinator().silences(owners))

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to finish what was decided (K2)."""
        self._rounds.start()

    async def end_asking(self) -> None:
        """Ask other brokers nothing more. On the data plane's loop."""
        await self._peers.close()

    def close(self) -> None:
        """End what is under way."""
        self._is_stopping.set()
        self._rounds.stop()
        for executor in (self._calls, self._answers, self._spread):
            executor.shutdown(wait=True)
        for known in list(self._stores.values()):
            for store in known.values():
                _close(store)

    def coordinator(self) -> Sinks:
        """The coordinator, if this broker leads `__commits` (K1).

        Raises:
            NotLeader: another broker does: `leader`. NotReady: nobody does yet, or this one not yet.
        """
        try:
            partition = self._streams.partition(*COMMITS)
        except UnknownStream:
            raise NotReady(self._why_missing()) from None
        with self._lock:
            found = self._coordinators.get(partition)
            if found is None:
                found = Sinks(
                    partition,
                    self,
                    clock=self._clock,
                    elapsed=self._elapsed,
                    executor=self._spread,
                    limits=self._limits,
                    counts=self.counts,
                )
                self._coordinators[partition] = found
            return found

    def forget(self, main: Partition) -> None:
        """A partition is about to be closed: what is beside it is closed first."""
        with self._lock:
            known = self._stores.get((main.incarnation, main.partition), {})
            stores = [known.pop(pair) for pair in list(known) if pair[0] is main]
        for store in stores:
            _close(store)

    def _forget_closed(self) -> None:
        """Keep nothing of partitions that are closed here."""
        with self._lock:
            for partition in [each for each in self._coordinators if each.replica.is_closed]:
                del self._coordinators[partition]
            for at, known in list(self._stores.items()):
                if all(main.replica.is_closed for main, _ in known):
                    del self._stores[at]

    def _round(self) -> float:
        """Returns in how many seconds the next one is due."""
        try:
            self._forget_closed()
            sinks = self.coordinator()
            rounds = SinkRounds(sinks)
            sinks.forget_signs()
            if self._waits.now_s() - self._swept_s >= self._sweep_s:
                self._swept_s = self._waits.now_s()
                rounds.sweep()  # it recovers first
            elif sinks.commits.ledger().unfinished():
                rounds.recover()
        except (NotLeader, NotReady):
            pass
        except LiftlogError as error:
            log.warning("sink.round_failed error=%s", error)
        except Exception:
            log.exception("sink.round_bug at=cluster")
        return ROUND_S

    # --- the stages of every partition (`stores.Stores`) ------------------------------------------------

    def store(self, stream: str, partition: int) -> Stages:
        """Raises UnknownStream, UnknownPartition, NotReady."""
        info = self._streams.info(stream)
        if not 0 <= partition < info.settings.partitions:
            raise UnknownPartition(f"stream {stream!r} has no partition {partition}", stream=stream)
        return self._stages(stream, info.incarnation, partition)

    def stores(self) -> Sequence[Stages]:
        """Those of partitions in which anything may be staged."""
        return [
            self._stages(info.name, info.incarnation, number)
            for info in self._streams.infos()
            for number in self._companions.numbers(info)
        ]

    def staged_in(self, partition: Partition) -> StageStore | None:
        """The stages beside a partition that are in no partition of their own, as far as they are open."""
        if not self._companions.in_folder:
            return None
        with self._lock:
            known = list(self._stores.get((partition.incarnation, partition.partition), {}).items())
        return next((store for (main, _), store in known if main is partition and store.exists), None)

    def is_gone(self, stream: str, incarnation: str) -> bool:
        """As `Stores.is_gone` (K4)."""
        if self._is_there(self._service.catalog, stream, incarnation):
            return False
        try:
            return not self._is_there(self._service.read(timeout_s=READ_S), stream, incarnation)
        except LiftlogError as error:
            raise NotReady(f"whether stream {stream!r} was deleted is not known now: {error}") from error

    def _is_there(self, catalog: Catalog, stream: str, incarnation: str) -> bool:
        info = catalog.streams.get(stream)
        return info is not None and info.incarnation == incarnation

    def _stages(self, stream: str, incarnation: str, partition: int) -> RemoteStages:
        """Asked wherever they are led by then, here too: leaders change."""
        return RemoteStages(stream, incarnation, partition, partial(self._ask_leader, stream, incarnation, partition))

    def _ask_leader(
        self, stream: str, incarnation: str, partition: int, act: str, what: dict[str, Any], timeout_s: float
    ) -> Any:
        def leader() -> str | None:
            state = self._service.catalog.cluster.partitions.get((incarnation, partition))
            return None if state is None else state.leader

        if leader() == self._me:
            return self._answer(stream, partition, incarnation, act, what)
        body = {"incarnation": incarnation, "act": act, "what": what}
        target = f"/v1/streams/{stream}/partitions/{partition}/stages/ask"
        try:
            return self._ask_leading(leader, f"{stream}/{partition}", target, body, timeout_s)
        except StaleIncarnation as error:  # that broker does not know of this one yet, or of the next one already
            raise NotReady(str(error)) from error

    def _ask_leading(
        self, leader: Callable[[], str | None], what: str, target: str, body: Any, timeout_s: float
    ) -> Any:
        """What the leader says. Raises NotReady, also as soon as another one leads (K9)."""
        broker = leader()
        known = None if broker is None else self._service.catalog.brokers.get(broker)
        if known is None:
            raise NotReady(f"{what}: nobody leads it now")
        query = {"timeout_ms": str(int(timeout_s * 1000))}
        asked = self._peers.ask(known.http, "POST", target, query=query, body=body, timeout_s=timeout_s)
        try:
            return self._waited(asyncio.run_coroutine_threadsafe(asked, self._loop), lambda: leader() != broker)
        except _Over:
            raise NotReady(f"{what}: {broker} has not answered, and leads it no longer") from None
        except NotLeader as error:  # its leader has changed, and this broker has not heard of it, or that one has not
            raise NotReady(f"{what}: {error}") from error
        except (RuntimeError, CancelledError) as error:
            asked.close()
            raise NotReady(f"{what}: the broker stops") from error

    def _waited(self, answer: Future[Any], is_over: Callable[[], bool]) -> Any:
        """The answer; the loop may end meanwhile, and answer nobody. Raises _Over."""
        while not self._waits.ended(answer, LOOK_S):
            if self._is_stopping.is_set():  # no `cancel`: it would ask a loop that has ended
                raise CancelledError
            if is_over():  # the machine may be silent: it would be waited for as long as a group may take (K9)
                answer.cancel()
                raise _Over
        return answer.result()

    # --- what is led here -----------------------------------------------------------------------------------

    def floor(self, incarnation: str, partition: int) -> int | None:
        """From which offset on nothing is let go of a partition that is led here (K3)."""
        if not self._companions.may_have(incarnation, partition):
            return None
        with self._lock:
            known = list(self._stores.get((incarnation, partition), {}).items())
        stores = [store for (_, companion), store in known if not companion.replica.is_closed]
        if not stores:  # made when somebody asks, and its coordinator will: it sweeps
            return 0
        return min((floor for store in stores if (floor := store.floor()) is not None), default=None)

    def _store_of(self, stream: str, partition: int, *, wait_s: float = 0.0) -> StageStore:
        """The stages of a partition that is led here.

        Raises:
            UnknownStream, UnknownPartition, NotLeader, NotReady.
        """
        main = self._streams.partition(stream, partition)
        companion = self._companions.of(main, wait_s=wait_s)
        at = main.incarnation, main.partition
        with self._lock:
            main.check_open(decided=True)
            if main.replica.is_closed:  # `forget` was here: nobody would close what is made now
                raise NotReady(f"{main}: it was closed here")
            known = self._stores.get(at, {})
            found = known.get((main, companion))
            if found is None:
                hidden = self._companions.log_of(main, companion)
                finishing = next((store.finishing for (each, _), store in known.items() if each is main), None)
                found = StageStore(
                    main, hidden, self._limits, clock=self._clock, elapsed=self._elapsed, finishing=finishing
                )
                kept = {pair: store for pair, store in known.items() if not any(of.replica.is_closed for of in pair)}
                self._stores[at] = {**kept, (main, companion): found}
            return found

    def _stage(self, stream: str, partition: int, batches: Sequence[Measured], **part: Unpack[StagePart]) -> bool:
        """As `SinksView.stage`. Committed when it returns."""
        self._may_stage(part["sink"], part["epoch"])
        store = self._store_of(stream, partition, wait_s=WAIT_S)
        is_new, generation = put_with_room(store, self._silences, batches, **part)
        store.make_durable(generation)
        return is_new

    def _stage_bundle(self, stream: str, parts: Sequence[tuple[int, Sequence[Measured], StagePart]]) -> Sequence[int]:
        """As `SinksView.stage_bundle`. Committed when it returns: all of it is on its way to the others at once."""
        put: list[tuple[StageStore, int]] = []
        elsewhere: list[int] = []
        for partition, batches, part in parts:
            self._may_stage(part["sink"], part["epoch"])
            try:
                store = self._store_of(stream, partition, wait_s=WAIT_S)
            except NotLeader:
                elsewhere.append(partition)
                continue
            put.append((store, put_with_room(store, self._silences, batches, **part)[1]))
        if not self._companions.in_folder:  # else the commit makes them durable (`stages.G7`)
            make_all_durable(put)
        return elsewhere

    @property
    def renew_ms(self) -> int:
        """As `SinksView.renew_ms`."""
        return renew_ms(self._limits)

    def _silences(self, owners: Sequence[Owner]) -> list[Silence]:
        """K8. Raises LiftlogError: nobody can tell."""
        try:
            return self.coordinator().silences(owners)
        except NotLeader:
            said = self._ask_coordinator("/v1/sinks/silences", {"owners": [list(owner) for owner in owners]})
            return [Silence(**each) for each in said["silences"]]

    def _may_stage(self, sink: str, epoch: int) -> None:
        """K6. Raises UnknownSink, SinkFenced; Retryable: nobody can tell now."""
        try:
            self._check(sink, epoch)
            return
        except (NotLeader, NotReady) as error:
            now_s = self._waits.now_s()
            if self._checked.get((sink, epoch), 0.0) > now_s:
                return
            if not isinstance(error, NotLeader):
                raise
        self._ask_coordinator(f"/v1/sinks/{sink}/check", {"epoch": epoch})
        with self._lock:
            if len(self._checked) >= REMEMBERED:
                self._checked.clear()
            self._checked[sink, epoch] = now_s + CHECKED_S

    def _ask_coordinator(self, target: str, body: dict[str, Any]) -> Any:
        def leader() -> str | None:
            state = self._streams.whereabouts(COMMITS_STREAM)[0]
            return None if state.leader is None else state.leader.id

        return self._ask_leading(leader, "sinks", target, body, CHECK_TIMEOUT_S)

    # --- what other brokers ask (K5) -------------------------------------------------------------------------

    def _check(self, sink: str, epoch: int) -> None:
        """As `SinksView.check`."""
        self.coordinator().check_stage(sink, epoch)

    def _answer(self, stream: str, partition: int, incarnation: str, act: str, what: Mapping[str, Any]) -> Any:
        """As `SinksView.ask`."""
        asked = question_of(act, what)
        store = self._store_of(stream, partition)
        if store.incarnation != incarnation:
            raise StaleIncarnation(f"{store.place}: incarnation {incarnation} is not led here", stream=stream)
        return answer(store, asked)

    # --- threads --------------------------------------------------------------------------------------------

    def _ask_sinks(self, act: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
        """A call of the coordinator (K1) as a coroutine."""
        return self._in_thread(self._calls, lambda *args, **options: act(self.coordinator(), *args, **options))

    def _in_thread(self, pool: Executor, act: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
        async def call(*args: Any, **options: Any) -> T:
            return await asyncio.get_running_loop().run_in_executor(pool, partial(act, *args, **options))

        return call
