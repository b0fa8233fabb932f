"""Many replicas are taken out of the search for cycles, once for each step, and go when nobody has them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from broker.background.lasting import STEP, Lasting


class Thing:
    """Refers to something, as a replica does, and to nothing that refers to it."""

    def __init__(self) -> None:
        self.of: list[object] = [object()]


@pytest.fixture
def frozen() -> Iterator[None]:
    """In the end all is frozen again that was before (tests/conftest.py)."""
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("frozen")
def test_what_lasts_is_frozen_once_for_each_step_and_goes_by_its_references() -> None:
    gc.unfreeze()
    lasting, things = Lasting(), [Thing() for _ in range(STEP)]
    lasting.note(STEP - 1)
    assert not gc.get_freeze_count(), "a few are searched"
    lasting.note(STEP)
    assert gc.get_freeze_count() > 2 * STEP
    gc.unfreeze()
    lasting.note(2 * STEP - 1)
    assert not gc.get_freeze_count(), "they are known"
    lasting.note(2 * STEP)
    gone = weakref.ref(things[0])
    assert gc.get_freeze_count() > 2 * STEP
    gc.disable()
    try:
        del things[0]
        assert gone() is None, "without a search"
    finally:
        gc.enable()


@pytest.mark.usefixtures("frozen")
def test_streams_that_come_and_go_freeze_again() -> None:
    gc.unfreeze()
    lasting = Lasting()
    lasting.note(STEP)
    gc.unfreeze()
    lasting.note(0)
    assert not gc.get_freeze_count()
    lasting.note(STEP)
    assert gc.get_freeze_count()
