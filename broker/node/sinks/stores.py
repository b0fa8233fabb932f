"""The calls of a coordinator of sinks to the partitions, here or at another broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from broker.node.sinks.stages import Staged
from broker.sinks.notes import GroupFinished
from broker.sinks.silence import Holding
from broker.sinks.state import StageRef


class Stages(Protocol):
    """The stages of one partition, here or at another broker. The calls are those of `StageStore`."""

    @property
    def place(self) -> str:
        """The partition, for people."""

    @property
    def incarnation(self) -> str:
        """The stream's."""

    @property
    def judged_in(self) -> int | None:
        """The leader epoch that something judged now is judged under; None: only what is judged of a pin counts."""

    @property
    def removed(self) -> bool: ...

    def pin(
        self, stages: Sequence[tuple[str, int | None]], *, sink: str, epoch: int, batch_id: int
    ) -> list[StageRef]: ...

    def finish(self, decision: str, sink: str, refs: Sequence[StageRef]) -> GroupFinished: ...

    def abort(self, stages: Iterable[str], *, sink: str) -> int: ...

    def drop(
        self, stages: Mapping[str, int], *, sink: str, leader_epoch: int | None, why: str, unpinned: bool = True
    ) -> int: ...

    def supersede(self, sink: str, epoch: int) -> int: ...

    def forget(self, decision: str) -> None: ...

    def holdings(self) -> list[Holding]: ...

    def sweep(self, *, is_asked_for: Callable[[str], bool]) -> None: ...

    def trim(self) -> None: ...

    def staged(self, sink: str | None = None) -> Staged: ...


class Stores(Protocol):
    """The stages of every partition."""

    def store(self, stream: str, partition: int) -> Stages:
        """Raises UnknownStream, UnknownPartition, or why the stream is offline."""

    def stores(self) -> Sequence[Stages]:
        """Those with something staged."""

    def is_gone(self, stream: str, incarnation: str) -> bool:
        """Whether the catalog knows no such incarnation of the stream any more (`coordinator.C6`).

        Raises NotReady: nobody can tell.
        """
