"""The operator alters each setting that can be altered, and what the check asks of ids follows from it."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.errors import StorageFailed
from broker.api.stream import CHOICES, SHAPES, UNALTERABLE, settings_from
from tests.soak import checker, ledger
from tests.soak.checker import Partition, Stored
from tests.soak.cluster import CLUSTER_OPERATIONS, ClusterOperator
from tests.soak.ledger import History, Ledger, Message, Story, Violation
from tests.soak.operator import OPERATIONS, Operator
from tests.soak.run import history_of
from tests.soak.world import CAPTURED, STREAMS, WRITTEN

SEEDS = 200


class Told:
    """A client whose streams are altered at once, and what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def alter(self, stream: str, **values: Any) -> None:
        self.asked.append((stream, values))


@pytest.fixture
def seen(tmp_path: Path) -> Ledger:
    return Ledger(Story(tmp_path / "story.txt"))


def operator_of(kind: type[Operator], seen: Ledger, seed: int) -> tuple[Operator, Told]:
    told: Any = Told()
    seen.histories = {stream: history_of(stream, settings) for stream, settings in STREAMS.items()}
    world: Any = SimpleNamespace(ledger=seen, client=told, captured=CAPTURED, written=WRITTEN, brokers={"b": None})
    return kind(world, str(seed), OPERATIONS if kind is Operator else CLUSTER_OPERATIONS), told


def test_it_alters_each_setting_to_each_of_its_words(seen: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.soak.operator.time", SimpleNamespace(sleep=lambda _: None))
    altered: dict[str, set[Any]] = {}
    for seed in range(SEEDS):
        operator, told = operator_of(Operator, seen, seed)
        for _ in range(10):
            operator.alter()
            operator.be_silent()
        for stream, values in told.asked:
            settings_from(values, base=settings_from(STREAMS[stream]))  # none is refused
            for key, value in values.items():
                altered.setdefault(key, set()).add(value)
    assert altered.keys() == SHAPES.keys() - UNALTERABLE
    for key, words in CHOICES.items():
        if key not in UNALTERABLE:
            assert altered[key] == set(words), key
    assert 0 in altered["dedup_window_ms"]
    assert altered["reply_acks"] == {True, False}
    single = {key for key, values in altered.items() if len(values) < 2}
    assert not single, "set to one value only"


def test_a_small_table_of_ids_goes_with_a_short_window(seen: Ledger) -> None:
    """Else it is full after seconds, and new ids are refused for as long as the window lasts, as they should be."""
    found = set()
    for seed in range(SEEDS):
        operator, told = operator_of(Operator, seen, seed)
        for _ in range(10):
            operator.alter()
        for stream in CAPTURED:
            settings = settings_from(STREAMS[stream])
            for asked in (values for name, values in told.asked if name == stream):
                settings = settings_from(asked, base=settings)
                found.add((settings.dedup_ids_max, settings.dedup_window_ms))
    assert {window_ms for count, window_ms in found if count < 100_000} == {0, 1_000}
    assert {window_ms for count, window_ms in found if count == 100_000} > {30_000, 3_600_000}


def test_with_three_brokers_nothing_is_set_that_loses_records(seen: Ledger) -> None:
    for seed in range(SEEDS):
        operator, told = operator_of(ClusterOperator, seen, seed)
        operator.alter()
        assert all(values.get("acks") != "leader" for _, values in told.asked)


def stored(*times_us: int) -> Partition:
    records = {offset: Stored(offset, time_us, None, "m-1") for offset, time_us in enumerate(times_us)}
    return Partition("s", "i", 0, 0, len(times_us), records, {})


def check_once(seen: Ledger, history: History, *times_us: int) -> None:
    checker._check_once(seen, history, stored(*times_us))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> itertools.count[int]:
    """Each look at it is a second later than the one before; it begins at 100 s."""
    clock = itertools.count(100)
    monkeypatch.setattr(ledger, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    return clock


def message(seen: Ledger, first_s: float, acked_s: float) -> None:
    made = seen.new(Message("m-1", "s", 0, repeats=True))
    made.first_s = made.last_s = first_s
    made.acked_s = acked_s


WINDOW_US = 120_000_000


def test_two_of_one_id_are_found_whatever_the_window_was_at_other_times(seen: Ledger, clock: object) -> None:
    history = history_of("ids", STREAMS["ids"])
    with history.window_changes(0):  # from 100 s on
        pass
    with history.window_changes(120_000):  # from 102 s on; the one before may be minded until 113 s
        pass
    for first_s, acked_s in ((10.0, 20.0), (114.0, 115.0)):
        message(seen, first_s, acked_s)
        with pytest.raises(Violation, match="K2"):
            check_once(seen, history, 0, WINDOW_US - 1)
        check_once(seen, history, 0, WINDOW_US)
    for first_s, acked_s in ((10.0, 90.0), (112.0, 200.0), (10.0, 200.0), (10.0, 0.0)):
        message(seen, first_s, acked_s)
        check_once(seen, history, 0, 1)


def test_of_an_alter_that_may_have_failed_the_shorter_window_counts(seen: Ledger, clock: object) -> None:
    for window_ms in (1_000, 3_600_000):
        history = history_of("ids", STREAMS["ids"])
        with pytest.raises(StorageFailed), history.window_changes(window_ms):
            raise StorageFailed("the answer was lost")
        message(seen, 1_000.0, 1_001.0)
        least_us = min(window_ms * 1_000, WINDOW_US)
        check_once(seen, history, 0, least_us)
        with pytest.raises(Violation, match="K2"):
            check_once(seen, history, 0, least_us - 1)


def test_a_stream_that_is_made_anew_remembers_as_in_the_beginning(seen: Ledger, clock: object) -> None:
    history = history_of("brief", STREAMS["brief"])
    with history.window_changes(0):
        pass
    history.made_anew(120_000)
    message(seen, 1_000.0, 1_001.0)
    with pytest.raises(Violation, match="K2"):
        check_once(seen, history, 0, 1)
