"""Where the next batch ends. Goal: A1 to A3 of advance.py, and every loss told apart; method: tables, Hypothesis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.api.errors import StaleIncarnation
from spark_liftlog.errors import LogTruncated, RecordsExpired
from spark_liftlog.reading.advance import Head, Heads, finish, losses, recreated, step, truncated, unknown_epochs
from spark_liftlog.reading.offsets import Key, Offset, ReadPosition


def start_at(positions: dict[int, tuple[int, int]], *, incarnation: str = "i1") -> Offset:
    return Offset(
        consumer="c",
        incarnations={"s": incarnation},
        positions={("s", p): ReadPosition(offset, epoch) for p, (offset, epoch) in positions.items()},
    )


def heads_of(partitions: dict[int, tuple[int, int, int]], *, incarnation: str = "i1") -> Heads:
    return Heads(
        incarnations={"s": incarnation}, partitions={("s", p): Head(*numbers) for p, numbers in partitions.items()}
    )


def test_nothing_new_is_no_step() -> None:
    start, heads = start_at({0: (10, 1), 1: (5, 1)}), heads_of({0: (0, 10, 1), 1: (5, 5, 1)})
    assert losses(start, heads) == {}
    assert step(start, heads, {}, limit=None) is None


def test_a_leader_change_alone_is_no_step() -> None:
    assert step(start_at({0: (10, 1)}), heads_of({0: (0, 10, 7)}), {}, limit=None) is None


def test_a_view_older_than_the_start_never_moves_back() -> None:
    start = start_at({0: (10, 1), 1: (3, 1)})
    heads = heads_of({0: (0, 8, 1), 1: (0, 4, 1)})
    it = step(start, heads, {}, limit=None)
    assert it is not None
    assert it.ends == {("s", 0): 10, ("s", 1): 4}


POSITIONS = st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 100), st.integers(-1, 5)), min_size=1)


@given(POSITIONS, st.data())
def test_ends_lie_between_start_and_high_watermark(at: dict[int, tuple[int, int]], data: st.DataObject) -> None:
    """A1."""
    start = start_at(at)
    heads = heads_of({p: (0, data.draw(st.integers(0, 200)), 5) for p in at})
    limit = data.draw(st.none() | st.integers(1, 300))
    it = step(start, heads, {}, limit=limit)
    backlog = {key: max(0, heads.partitions[key].high_watermark - p.offset) for key, p in start.positions.items()}
    if it is None:
        assert not any(backlog.values())
        return
    assert not it.base
    for key, position in start.positions.items():
        assert position.offset <= it.ends[key] <= max(position.offset, heads.partitions[key].high_watermark)
        assert (it.ends[key] > position.offset) == bool(backlog[key]), "nobody starves, nobody invents"
    end = finish(it, heads, dict.fromkeys(unknown_epochs(it, heads), 5))
    assert end.positions.keys() == start.positions.keys()
    assert step(end, heads, {}, limit=limit) is None or limit is not None


def test_limited_steps_arrive_at_the_heads() -> None:
    position, heads = start_at({0: (0, -1), 1: (0, -1)}), heads_of({0: (0, 7, 1), 1: (0, 1000, 1)})
    steps = 0
    while (it := step(position, heads, {}, limit=100)) is not None:
        position = finish(it, heads, dict.fromkeys(unknown_epochs(it, heads), 1))
        steps += 1
    assert {key: p.offset for key, p in position.positions.items()} == {("s", 0): 7, ("s", 1): 1000}
    assert steps == 11


def test_a_partition_without_news_keeps_its_entry_to_the_letter() -> None:
    start = start_at({0: (10, 1), 1: (5, 1)})
    heads = heads_of({0: (0, 10, 9), 1: (0, 6, 9)})
    it = step(start, heads, {}, limit=None)
    assert it is not None
    assert unknown_epochs(it, heads) == {("s", 1): 6}
    end = finish(it, heads, {("s", 1): 9})
    assert end.positions == {("s", 0): ReadPosition(10, 1), ("s", 1): ReadPosition(6, 9)}


def test_the_epoch_is_not_asked_for_while_it_cannot_have_changed() -> None:
    start, heads = start_at({0: (10, 4)}), heads_of({0: (0, 12, 4)})
    it = step(start, heads, {}, limit=None)
    assert it is not None
    assert unknown_epochs(it, heads) == {}
    assert finish(it, heads, {}).positions == {("s", 0): ReadPosition(12, 4)}


def test_retention_past_the_start_is_told_with_range_and_option() -> None:
    found = losses(start_at({0: (10, 1)}), heads_of({0: (25, 40, 1)}))
    loss = found["s", 0]
    assert isinstance(loss.error, RecordsExpired)
    assert loss.resume == 25
    for part in ("records 10 to 24", "25 to 40", "failOnDataLoss=false", "offset 25"):
        assert part in str(loss.error)


def test_a_recreated_stream_is_told_by_its_incarnation_whatever_its_offsets() -> None:
    found = losses(start_at({0: (10, 1)}), heads_of({0: (0, 400, 1), 1: (3, 9, 1)}, incarnation="i2"))
    assert {key: loss.resume for key, loss in found.items()} == {("s", 0): 0, ("s", 1): 3}
    assert all(isinstance(loss.error, StaleIncarnation) for loss in found.values())


def test_what_heads_alone_cannot_tell_is_not_called_a_loss() -> None:
    assert losses(start_at({0: (10, 1)}), heads_of({0: (0, 8, 1)})) == {}
    assert losses(start_at({0: (10, 1)}), Heads(incarnations={}, partitions={})) == {}


def test_truncation_is_told_apart_from_a_rewritten_tail() -> None:
    key: Key = ("s", 0)
    short, rewritten = truncated(key, 10, 8, Head(0, 8, 2)), truncated(key, 10, 6, Head(0, 50, 2))
    assert isinstance(short, LogTruncated)
    assert "the log ends at 8" in str(short)
    assert "from 6 on were lost and written anew" in str(rewritten)


def test_a_survived_loss_says_in_its_base_where_the_batch_begins() -> None:
    """A2: the same end, decoded by a later run, gives the same batch."""
    start, heads = start_at({0: (10, 1), 1: (7, 1)}), heads_of({0: (25, 40, 3), 1: (0, 9, 1)})
    it = step(start, heads, {("s", 0): 25}, limit=None)
    assert it is not None
    end = finish(it, heads, dict.fromkeys(unknown_epochs(it, heads), 3))
    assert end.base == {("s", 0): 25}
    assert end.positions == {("s", 0): ReadPosition(40, 3), ("s", 1): ReadPosition(9, 1)}
    assert step(end, heads, {}, limit=None) is None


def test_a_survived_loss_moves_on_even_where_nothing_is_left() -> None:
    start, heads = start_at({0: (10, 1)}), heads_of({0: (25, 25, 3)})
    it = step(start, heads, {("s", 0): 25}, limit=None)
    assert it is not None
    assert it.ends == it.base == {("s", 0): 25}


def test_after_a_truncation_the_end_may_lie_below_the_start_but_says_so() -> None:
    start, heads = start_at({0: (100, 1)}), heads_of({0: (0, 90, 2)})
    it = step(start, heads, {("s", 0): 80}, limit=None)
    assert it is not None
    end = finish(it, heads, dict.fromkeys(unknown_epochs(it, heads), 2))
    assert (end.base, end.positions) == ({("s", 0): 80}, {("s", 0): ReadPosition(90, 2)})


def test_the_partitions_of_a_recreated_stream_replace_the_old_ones() -> None:
    start = start_at({0: (10, 1), 1: (7, 1)})
    heads = heads_of({0: (0, 3, 5)}, incarnation="i2")
    it = step(start, heads, {("s", 0): 0}, limit=None)
    assert it is not None
    end = finish(it, heads, dict.fromkeys(unknown_epochs(it, heads), 5))
    assert end.incarnations == {"s": "i2"}
    assert end.positions == {("s", 0): ReadPosition(3, 5)}
    assert unknown_epochs(it, heads) == {("s", 0): 3}


def test_a_new_partition_is_read_from_its_beginning() -> None:
    it = step(start_at({0: (10, 1)}), heads_of({0: (0, 10, 1), 1: (2, 6, 1)}), {}, limit=None)
    assert it is not None
    assert it.base == {("s", 1): 2}
    assert it.ends == {("s", 0): 10, ("s", 1): 6}


def test_errors_of_a_recreated_stream_name_both_incarnations() -> None:
    text = str(recreated("s", "i1", "i2", 0))
    assert "i1" in text
    assert "i2" in text
    assert "failOnDataLoss=false" in text


def test_a_partition_that_an_answer_does_not_tell_of_keeps_its_position() -> None:
    """A4: dropped, it would come back as new and be read from its start."""
    start = start_at({0: (10, 1), 1: (7, 1)})
    heads = heads_of({0: (0, 12, 1)})
    it = step(start, heads, {}, limit=None)
    assert it is not None
    end = finish(it, heads, {})
    assert end.positions == {("s", 0): ReadPosition(12, 1), ("s", 1): ReadPosition(7, 1)}
    assert step(end, heads, {}, limit=None) is None


def test_a_stream_that_is_not_told_of_keeps_its_positions_and_incarnation() -> None:
    start = Offset(
        consumer="c",
        incarnations={"s": "i1", "t": "j1"},
        positions={("s", 0): ReadPosition(10, 1), ("t", 0): ReadPosition(5, 1)},
    )
    it = step(start, heads_of({0: (0, 12, 1)}), {}, limit=None)
    assert it is not None
    end = finish(it, heads_of({0: (0, 12, 1)}), {})
    assert end.incarnations == start.incarnations
    assert end.positions["t", 0] == ReadPosition(5, 1)


def test_a_stream_that_is_lost_holds_up_no_other() -> None:
    start = Offset(
        consumer="c",
        incarnations={"s": "i1", "t": "j1"},
        positions={("s", 0): ReadPosition(10, 1), ("t", 0): ReadPosition(5, 1)},
    )
    both = Heads(incarnations={"s": "i2", "t": "j1"}, partitions={("s", 0): Head(0, 99, 1), ("t", 0): Head(0, 6, 1)})
    it = step(start, both, {}, limit=None, held={("s", 0)})
    assert it is not None
    end = finish(it, both, {})
    assert end.incarnations == {"s": "i1", "t": "j1"}, "its offsets still count the old records"
    assert end.positions == {("s", 0): ReadPosition(10, 1), ("t", 0): ReadPosition(6, 1)}


def test_streams_that_are_found_while_running_begin_where_they_are_told_to() -> None:
    start = start_at({0: (10, 1)})
    both = Heads(incarnations={"s": "i1", "t": "j1"}, partitions={("s", 0): Head(0, 10, 1), ("t", 0): Head(2, 6, 1)})
    assert step(start, both, {}, limit=None) is None, "not added: not read"
    it = step(start, both, {}, limit=None, added={("t", 0): 4})
    assert it is not None
    end = finish(it, both, dict.fromkeys(unknown_epochs(it, both), 1))
    assert (end.base, end.incarnations) == ({("t", 0): 4}, {"s": "i1", "t": "j1"})
    assert end.positions == {("s", 0): ReadPosition(10, 1), ("t", 0): ReadPosition(6, 1)}


def test_the_beginning_of_an_added_partition_that_retention_took_is_a_loss() -> None:
    found = losses(start_at({0: (10, 1)}), heads_of({0: (0, 10, 1), 1: (30, 40, 1)}))
    assert isinstance(found["s", 1].error, RecordsExpired)
    assert found["s", 1].resume == 30
    assert "records 0 to 29" in str(found["s", 1].error)
    assert losses(start_at({0: (10, 1)}), heads_of({0: (0, 10, 1), 1: (30, 40, 1)}), added={("s", 1)}) == {}
