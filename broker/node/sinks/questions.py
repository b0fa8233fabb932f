"""Questions of a coordinator about the stages of a partition that another broker leads, and that broker's answers.

    RemoteStages.pin(...) ─► {"act": "pin", "what": {...}} ─► HTTP ─► answer(store, act, what) ─► StageStore.pin(...)

N1  A question has the effect of the call that it stands for, once or several times: each call may be repeated.
N2  A sweep takes three steps: the partition says which groups it remembers, the ledger judges them, the partition
    forgets those that are done. So the ledger is read after the groups were, as `rounds` reads it after the pins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from broker.api.errors import InvalidRequest
from broker.api.validation import build
from broker.node.sinks.stages import Staged, StageStore
from broker.sinks.notes import GroupFinished, StagePinned
from broker.sinks.silence import Holding
from broker.sinks.stages import Stage
from broker.sinks.state import StageRef

T = TypeVar("T")

QUICK_S: Final = 10.0
HELD_S: Final = 2.0
FINISH_S: Final = 60.0
"""A group of a gigabyte is copied meanwhile. An asker that gave up asks again, and waits for the same copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """As `StageStore.pin`."""

    stages: tuple[tuple[str, int | None], ...]
    sink: str
    epoch: int
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A `StageRef` without its place."""

    stage: str
    parts: int
    rows: int
    search_from: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """As `StageStore.finish`."""

    decision: str
    sink: str
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """As `StageStore.abort`."""

    stages: tuple[str, ...]
    sink: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """As `StageStore.drop`."""

    stages: Mapping[str, int]
    sink: str
    leader_epoch: int | None
    why: str
    unpinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Supersede:
    """As `StageStore.supersede`."""

    sink: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """As `StageStore.forget`."""

    decision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Which groups are remembered (N2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """As `StageStore.sweep`: nobody asks for these groups any more."""

    done: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """As `StageStore.trim`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """As `StageStore.staged`."""

    sink: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """As `StageStore.holdings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStage:
    """A stage as far as a coordinator judges it."""

    stage: str
    sink: str
    epoch: int
    pin: StagePinned | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStages:
    """The answer to `Live`."""

    leader_epoch: int | None
    stages: tuple[LiveStage, ...]


Question = Pin | Finish | Abort | Drop | Supersede | Forget | Finished | Sweep | Trim | Live | Held

_QUESTIONS: Final[dict[str, type[Any]]] = {
    cls.__name__.lower(): cls
    for cls in (Pin, Finish, Abort, Drop, Supersede, Forget, Finished, Sweep, Trim, Live, Held)
}


def question_of(act: str, what: Mapping[str, Any]) -> Question:
    """Raises InvalidRequest."""
    if act not in _QUESTIONS:
        raise InvalidRequest(f"act {act!r}: one of {', '.join(_QUESTIONS)}", field="act")
    question: Question = _built(_QUESTIONS[act], what, f"what of {act!r}")
    return question


def answer(store: StageStore, asked: Question) -> dict[str, Any]:
    """Do what was asked of the stages of a partition that is led here. Raises as the call that it stands for."""
    match asked:
        case Pin():
            refs = store.pin(asked.stages, sink=asked.sink, epoch=asked.epoch, batch_id=asked.batch_id)
            keys = ("stage", "parts", "rows", "search_from")
            return {"refs": [{key: getattr(ref, key) for key in keys} for ref in refs]}
        case Finish():
            return asdict(store.finish(asked.decision, asked.sink, _placed(store, asked.refs)))
        case Abort():
            return {"count": store.abort(asked.stages, sink=asked.sink)}
        case Drop():
            count = store.drop(
                asked.stages,
                sink=asked.sink,
                leader_epoch=asked.leader_epoch,
                why=asked.why,
                unpinned=asked.unpinned,
            )
            return {"count": count}
        case Supersede():
            return {"count": store.supersede(asked.sink, asked.epoch)}
        case Forget():
            store.forget(asked.decision)
        case Finished():
            return {"decisions": store.finished()}
        case Sweep():
            done = frozenset(asked.done)
            store.sweep(is_asked_for=lambda decision: decision not in done)
        case Trim():
            store.trim()
        case Live():
            found = store.staged(asked.sink)
            stages = (LiveStage(stage=s.stage, sink=s.sink, epoch=s.epoch, pin=s.pin) for s in found.stages)
            return asdict(LiveStages(leader_epoch=found.leader_epoch, stages=tuple(stages)))
        case Held():
            return {"holdings": [asdict(each) for each in store.holdings()]}
    return {}


def _placed(store: StageStore, refs: Iterable[Ref]) -> list[StageRef]:
    main = store.main
    return [
        StageRef(stream=main.stream, incarnation=main.incarnation, partition=main.partition, **asdict(ref))
        for ref in refs
    ]


class RemoteStages:
    """The stages of a partition that another broker leads. Implements `stores.Stages`; calls block.

    Args:
        ask: Sends a question to whoever leads the partition: act, what, how long the answer may take. Raises
            Retryable if nobody can be asked.
    """

    judged_in: int | None = None
    removed = False

    def __init__(
        self, stream: str, incarnation: str, partition: int, ask: Callable[[str, dict[str, Any], float], Any]
    ) -> None:
        self.stream = stream
        self.incarnation = incarnation
        self.partition = partition
        self._send = ask

    @property
    def place(self) -> str:
        """As `Stages.place`."""
        return f"{self.stream}/{self.partition}"

    def pin(self, stages: Sequence[tuple[str, int | None]], *, sink: str, epoch: int, batch_id: int) -> list[StageRef]:
        """As `StageStore.pin`."""
        said = self._ask(Pin(stages=tuple(stages), sink=sink, epoch=epoch, batch_id=batch_id))
        refs = [_built(Ref, ref, "a pinned stage") for ref in said["refs"]]
        place = {"stream": self.stream, "incarnation": self.incarnation, "partition": self.partition}
        return [build(StageRef, {**place, **asdict(ref)}) for ref in refs]

    def finish(self, decision: str, sink: str, refs: Sequence[StageRef]) -> GroupFinished:
        """As `StageStore.finish`."""
        named = tuple(Ref(stage=ref.stage, parts=ref.parts, rows=ref.rows, search_from=ref.search_from) for ref in refs)
        said = self._ask(Finish(decision=decision, sink=sink, refs=named), FINISH_S)
        return _built(GroupFinished, said, "a finished group")

    def abort(self, stages: Iterable[str], *, sink: str) -> int:
        """As `StageStore.abort`."""
        return int(self._ask(Abort(stages=tuple(stages), sink=sink))["count"])

    def drop(
        self, stages: Mapping[str, int], *, sink: str, leader_epoch: int | None, why: str, unpinned: bool = True
    ) -> int:
        """As `StageStore.drop`."""
        asked = Drop(stages=dict(stages), sink=sink, leader_epoch=leader_epoch, why=why, unpinned=unpinned)
        return int(self._ask(asked)["count"])

    def supersede(self, sink: str, epoch: int) -> int:
        """As `StageStore.supersede`."""
        return int(self._ask(Supersede(sink=sink, epoch=epoch))["count"])

    def forget(self, decision: str) -> None:
        """As `StageStore.forget`."""
        self._ask(Forget(decision=decision))

    def sweep(self, *, is_asked_for: Callable[[str], bool]) -> None:
        """As `StageStore.sweep` (N2)."""
        known = self._ask(Finished())["decisions"]
        self._ask(Sweep(done=tuple(decision for decision in known if not is_asked_for(decision))))

    def trim(self) -> None:
        """As `StageStore.trim`."""
        self._ask(Trim())

    def holdings(self) -> list[Holding]:
        """As `StageStore.holdings`."""
        return [_built(Holding, each, "a holding") for each in self._ask(Held(), HELD_S)["holdings"]]

    def staged(self, sink: str | None = None) -> Staged:
        """As `StageStore.staged`: no more of a stage than is judged."""
        said = _built(LiveStages, self._ask(Live(sink=sink)), "the live stages")
        stages = (Stage(stage=each.stage, sink=each.sink, epoch=each.epoch, pin=each.pin) for each in said.stages)
        return Staged(leader_epoch=said.leader_epoch, stages=tuple(stages))

    def _ask(self, question: Question, timeout_s: float = QUICK_S) -> Any:
        return self._send(type(question).__name__.lower(), asdict(question), timeout_s)


def _built(cls: type[T], value: Any, what: str) -> T:
    try:
        return build(cls, value)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{what}: {error}", field="what") from error
