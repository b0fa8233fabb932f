"""Room for what is staged: before anybody is refused, the stages of silent owners go.

full ─► who holds it? ─► the coordinator: which of them are silent? ─► theirs go, the longest silent first ─► again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Unpack

from broker.api.errors import LiftlogError, StagesFull
from broker.node.sinks.stages import StageStore
from broker.sinks.notes import StagePart
from broker.sinks.silence import Owner, Silence
from broker.storage.rows import Measured


def put_with_room(
    store: StageStore,
    silences: Callable[[Sequence[Owner]], Sequence[Silence]],
    batches: Sequence[Measured],
    check: Callable[[], None] = lambda: None,
    **part: Unpack[StagePart],
) -> tuple[bool, int]:
    """As `StageStore.put`. Nothing is held while the coordinator is asked.

    Args:
        silences: Asks the coordinator.
    Raises:
        StagesFull: what is staged is pinned, or of owners that are not silent.
    """
    while True:
        try:
            return store.put(batches, check, **part)
        except StagesFull:
            if not store.make_room(silent_first(store, silences)):
                raise


def silent_first(store: StageStore, silences: Callable[[Sequence[Owner]], Sequence[Silence]]) -> list[Owner]:
    """The silent owners of a partition's stages, the longest silent first; none if nobody can tell."""
    owners = [(held.sink, held.epoch) for held in store.holdings()]
    try:
        told = silences(owners)
    except LiftlogError:
        return []
    found = [(-silence.silent_us, owner) for owner, silence in zip(owners, told, strict=True) if silence.is_silent]
    return [owner for _, owner in sorted(found)]


def make_all_durable(put: Iterable[tuple[StageStore, int]]) -> None:
    """Make durable what was put in several partitions. Raises as `StageStore.make_durable`."""
    for store, generation in put:
        store.make_durable(generation)
