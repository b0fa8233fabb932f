"""Goal: a record that is whole on any replica, or in files that were moved aside, is not lost on the others.

Method: three brokers in one process, real logs and connections. Bits are flipped in the files of each at another place,
and the scrub of each finds them.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from broker.api.batch import decode_batch
from broker.api.errors import CorruptLog
from broker.link import handshake, ranges
from broker.link.answering import Answering, AnswerStream
from broker.link.codec import Question, Welcome
from broker.metadata.partition import Place
from broker.node import mending
from broker.node.folders import ASIDE
from broker.replication.messages import Fetch
from broker.storage.rewrite.clean_state import CleanState, load_clean_state, save_clean_state
from broker.storage.writing.replace import sealed_segments
from tests.support.linked import RESERVE_BYTES, Linked, LinkedNode, linked
from tests.support.processes import eventually
from tests.unit.runtime.test_partition import Waiter, rows

COUNT = 30


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Linked]:
    monkeypatch.setattr(mending, "PAUSE_FIRST_MS", 50)
    monkeypatch.setattr(mending, "PAUSE_LAST_MS", 200)
    with linked(tmp_path) as cluster:
        cluster.start()
        yield cluster


def filled(three: Linked, **settings: object) -> Place:
    """A partition whose records are batches of their own, in several segments, on all three."""
    [at] = three.create(**settings)
    for number in range(COUNT):
        three.stored(at, b"%d" % number * 100)
        if number % 10 == 9:
            for node in three.nodes.values():
                eventually(lambda node=node, n=number: node.log(at).state.log_end_offset == n + 1, what="a copy")  # type: ignore[misc]
                node.log(at).roll_if_due(1 << 60)
    three.in_sync(at)
    three.same(at)
    return at


def flip(node: LinkedNode, at: Place, *offsets: int) -> None:
    view = node.log(at).state.view()
    for offset in offsets:
        segment = view.segments[view.segment_of(offset)]
        index = view.index(segment)
        place = int(index.positions[index.find(offset)]) + 900
        with Path(segment.path).open("r+b") as file:
            file.seek(place)
            [byte] = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 4]))


def found(node: LinkedNode, at: Place) -> None:
    """The scrub meets it."""
    offset, replica = 0, node.partition(at).replica
    while (piece := replica.scrub(offset)) is not None:
        offset = piece.next_offset


def damage(node: LinkedNode, at: Place, *offsets: int) -> None:
    flip(node, at, *offsets)
    found(node, at)


def damage_all(nodes: Collection[LinkedNode], at: Place, *offsets: int) -> None:
    """Nobody has it whole for the first one that asks."""
    for node in nodes:
        flip(node, at, *offsets)
    for node in nodes:
        found(node, at)


def mended(three: Linked, at: Place) -> None:
    """All that there is can be read on all three, and each takes part again."""

    def is_whole(node: LinkedNode) -> bool:
        found(node, at)
        return not (node.log(at).state.lost_ranges or node.placed(at).is_damaged)

    eventually(lambda: all(map(is_whole, three.nodes.values())), what="all to be mended")


def in_vain(node: LinkedNode, at: Place) -> None:
    """It has asked everybody more than once."""

    def seen() -> list[object]:
        placed = node.placed(at)
        asks = placed.mending
        mending = [] if asks is None else [asks._rounds, asks._asked, asks._last, asks._round, asks._has_slot]
        return [node.me, placed.is_damaged, node.log(at).state.lost_ranges, *mending]

    try:
        eventually(lambda: (found := node.placed(at).mending) is not None and found._rounds > 3)
    except AssertionError:
        pytest.fail(f"no rounds in vain: {seen()}")


def check_all_stayed(three: Linked, at: Place, *, count: int = COUNT) -> None:
    """Nobody has begun anew, all is as it was, and the partition goes on."""
    assert [three.service.state(at).step_outs_of(name) for name in three.names] == [0, 0, 0]
    three.in_sync(at)
    three.same(at)
    assert three.stored(at, b"after") == count + 1
    three.same(at)
    for node in three.nodes.values():
        aside = Path(node.log(at).state.folder + ASIDE)
        eventually(lambda aside=aside: not aside.exists(), what="no files to be kept aside")  # type: ignore[misc]


def leader_and_others(three: Linked, at: Place) -> tuple[LinkedNode, LinkedNode, LinkedNode]:
    one, two = three.followers(at)
    return three.leader(at), one, two


def test_all_three_are_damaged_at_different_places(three: Linked) -> None:
    """The defect: each gave up its whole log. Whoever led could not, and the others stopped before its damage."""
    at = filled(three)
    for number, node in enumerate(three.nodes.values()):
        flip(node, at, 3 + 7 * number)
    for node in three.nodes.values():
        found(node, at)
    mended(three, at)
    check_all_stayed(three, at)
    assert [node.partition(at).damage.mended_count for node in three.nodes.values()] == [1, 1, 1]


def test_it_is_the_leader_who_is_damaged_and_it_leads_on(three: Linked) -> None:
    at = filled(three)
    leader, _, _ = leader_and_others(three, at)
    epoch = three.service.state(at).leader_epoch
    damage(leader, at, 3, 4, 5, 12, 25)
    assert three.stored(at, b"meanwhile") == COUNT + 1
    mended(three, at)
    check_all_stayed(three, at, count=COUNT + 1)
    assert three.service.state(at).leader_epoch == epoch


def test_neighbours_have_each_a_part_of_what_the_third_lacks(three: Linked) -> None:
    at = filled(three)
    leader, one, two = leader_and_others(three, at)
    flip(one, at, 4, 5)
    flip(two, at, 6, 7)
    damage(leader, at, *range(4, 8))
    mended(three, at)
    check_all_stayed(three, at)


def test_it_is_found_by_whoever_is_asked(three: Linked) -> None:
    """Nobody has read the damaged batch of another replica: the question does, and that one asks, too."""
    at = filled(three)
    leader, one, two = leader_and_others(three, at)
    flip(one, at, 4)
    damage(leader, at, 4)
    mended(three, at)
    check_all_stayed(three, at)
    assert one.partition(at).damage.mended_count == 1
    assert two.partition(at).damage.mended_count == 0


@pytest.mark.parametrize("base", [0, 10])
def test_a_file_is_gone(three: Linked, base: int) -> None:
    at = filled(three)
    _, one, _ = leader_and_others(three, at)
    Path(one.log(at).state.folder, f"{base:020d}.arrows").unlink()
    with pytest.raises(CorruptLog), one.log(at).reader.read(base + 2):
        pass
    mended(three, at)
    check_all_stayed(three, at)


@pytest.mark.slow
@pytest.mark.long
def test_damage_is_found_at_a_start(three: Linked) -> None:
    at = filled(three)
    _, one, _ = leader_and_others(three, at)
    flip(one, at, 12)
    three.stop(one.me)
    three.stored(at, b"while it is away")
    three.start(one.me)
    found(three.nodes[one.me], at)
    mended(three, at)
    check_all_stayed(three, at, count=COUNT + 1)


def test_who_follows_again_in_its_epoch_gets_all_that_came_meanwhile(three: Linked) -> None:
    at = filled(three)
    leader, one, two = leader_and_others(three, at)
    with deaf(three, leader, two):
        damage(one, at, 12)
        eventually(lambda: one.placed(at).is_damaged, what="to be noticed")
        waiters = [three.publish(at, b"%d" % number) for number in range(5)]
    mended(three, at)
    eventually(lambda: all(waiter.outcome is not None for waiter in waiters), what="acks")
    check_all_stayed(three, at, count=COUNT + 5)


@contextlib.contextmanager
def deaf(three: Linked, *nodes: LinkedNode) -> Iterator[None]:
    for node in nodes:
        three.relays[node.me].paused = True
    yield
    for node in nodes:
        three.relays[node.me].paused = False


def test_all_are_damaged_in_the_same_place_and_each_stays(three: Linked) -> None:
    """Nothing is won by a new beginning. What is whole stays, and one who had it before comes back."""
    at = filled(three)
    leader, one, two = leader_and_others(three, at)
    kept = Path(two.log(at).state.folder)
    shutil.copytree(kept, kept.parent / "copy")
    damage_all((leader, one, two), at, 12)
    for node in (leader, one, two):
        in_vain(node, at)
        assert node.log(at).state.lost_ranges == ((12, 13),)
        assert not node.placed(at).mending.is_in_vain()  # type: ignore[union-attr]
    with leader.log(at).reader.read(13) as plan:
        assert plan.next_offset == COUNT
    with pytest.raises(CorruptLog), leader.log(at).reader.read(12):
        pass
    assert [three.service.state(at).step_outs_of(name) for name in three.names] == [0, 0, 0]
    (kept.parent / "copy").rename(str(kept) + ASIDE)  # as if it had begun anew once
    mended(three, at)
    assert [node.partition(at).damage.mended_count for node in three.nodes.values()] == [1, 1, 1]
    three.in_sync(at)
    three.same(at)


def test_what_nobody_has_is_given_up_on_the_leader_and_the_others_copy_that(three: Linked) -> None:
    at = filled(three)
    leader, one, two = leader_and_others(three, at)
    damage_all((leader, one, two), at, 12)
    for node in (leader, one, two):
        in_vain(node, at)
    partition = leader.partition(at)
    assert partition.damage.asked_for_lost() == {one.me: True, two.me: True}
    aside = leader.log(at).state.folder + ASIDE
    partition.damage.give_up(((12, 13),), leader_epoch=partition.leader_epoch, aside=aside)
    mended(three, at)
    check_all_stayed(three, at)
    offsets = [at for m in one.log(at).reader.batches(0) for at in decode_batch(m).column("offset").to_pylist()]
    assert offsets == [each for each in range(COUNT + 1) if each != 12]


def test_only_files_that_were_moved_aside_have_it(three: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are in sync, so each turn would remove them. A turn comes when it likes."""
    at = filled(three)
    leader, one, two = leader_and_others(three, at)
    monkeypatch.setattr(type(two.host.folders), "remove_aside", lambda *at: None)
    folder = Path(two.log(at).state.folder)
    shutil.copytree(folder, str(folder) + ASIDE)
    flip(one, at, 12)
    flip(two, at, 12)
    damage(leader, at, 12)
    mended(three, at)
    three.in_sync(at)
    three.same(at)
    assert [three.service.state(at).step_outs_of(name) for name in three.names] == [0, 0, 0]


def have_compacted(three: Linked, at: Place) -> None:
    """All three up to 20, and the leader knows."""
    for node in three.nodes.values():
        opened = node.log(at)
        save_clean_state(opened.state.disk, opened.state.folder, CleanState(cleaned_to=20))
        opened.state.note_compacted(20)
    three.stored(at, b"x")
    core = three.leader(at).partition(at)._core
    eventually(lambda: core.tombstones_below(20) == 20, what="the marks to be told")


def test_a_log_that_is_compacted_takes_nothing_from_aside_and_lowers_its_mark_first(three: Linked) -> None:
    """A deleted key would come back: what was moved aside has held back no tombstone."""
    at = filled(three, cleanup="compact")
    leader, one, two = leader_and_others(three, at)
    folder = Path(two.log(at).state.folder)
    shutil.copytree(folder, str(folder) + ASIDE)
    have_compacted(three, at)
    damage_all((leader, one, two), at, 12)
    for node in (leader, one, two):
        in_vain(node, at)
        assert load_clean_state(node.log(at).state.disk, node.log(at).state.folder).cleaned_to == 12
    core = leader.partition(at)._core
    assert core.tombstones_below(20) <= 12
    assert {name: one.compacted_to for name, one in core.in_sync.followers.items()} == {  # type: ignore[union-attr]
        one.me: 12,
        two.me: 12,
    }


def test_the_leader_hears_of_the_lowered_mark_before_anybody_else_is_asked(three: Linked) -> None:
    at = filled(three, cleanup="compact")
    leader, one, _ = leader_and_others(three, at)
    have_compacted(three, at)
    flip(leader, at, 12)
    damage(one, at, 12)
    mended(three, at)
    assert one.log(at).state.compacted_to == 12
    three.in_sync(at)
    three.same(at)


def test_a_fetch_that_comes_behind_the_question_raises_no_mark(three: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was on its way when the mark was lowered. All are damaged, so that none is mended meanwhile."""
    late: dict[str, tuple[Answering, AnswerStream, Fetch]] = {}
    are_late = False
    real = Answering.asked

    def asked(answering: Answering, stream: AnswerStream, question: Question, **values: bool) -> None:
        if are_late and isinstance(question, Fetch):
            late.setdefault(question.follower, (answering, stream, question))
        else:
            real(answering, stream, question, **values)

    monkeypatch.setattr(Answering, "asked", asked)
    at = filled(three, cleanup="compact")
    leader, one, two = leader_and_others(three, at)
    have_compacted(three, at)
    are_late = True
    leader.partition(at).append_now([rows(b"x")], Waiter())
    eventually(lambda: len(late) == 2, what="fetches")
    damage_all((leader, one, two), at, 12)
    for node in (one, two):
        in_vain(node, at)
    followers = leader.partition(at)._core.in_sync.followers  # type: ignore[union-attr]
    for node in (one, two):
        answering, stream, fetch = late[node.me]
        assert fetch.compacted_to == 20
        real(answering, stream, fetch)
        assert followers[node.me].compacted_to == 12


@pytest.mark.slow
@pytest.mark.long
def test_a_broker_of_an_earlier_release_is_not_asked_and_the_replica_begins_anew(
    three: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its welcome does not say that it knows the question, which would end the stream."""
    monkeypatch.setattr(handshake.Caller, "welcome", lambda caller, data: Welcome(b""))
    at = filled(three)
    _, one, _ = leader_and_others(three, at)
    streams = {name: node.link.counts["lost"] for name, node in three.nodes.items()}
    damage(one, at, 12)
    begins_anew(three, at, one.me)
    three.in_sync(at)
    three.same(at)
    assert {name: node.link.counts["lost"] for name, node in three.nodes.items()} == streams


def begins_anew(three: Linked, at: Place, name: str) -> None:
    def has_stepped_out() -> bool:
        renew(three)
        return three.service.state(at).step_outs_of(name) == 1

    eventually(has_stepped_out, what="a step-out")


def renew(three: Linked) -> None:
    """All live, and say so (`heard.D1`)."""
    renewals = {name: info.registration for name, info in three.service.catalog.brokers.items()}
    three.service.apply(kind="renew_sessions", renewals=renewals)


def test_a_broker_dies_while_it_is_asked(three: Linked) -> None:
    at = filled(three)
    leader, one, two = leader_and_others(three, at)
    flip(leader, at, 12)
    with deaf(three, two):
        damage(one, at, 12)
        eventually(lambda: one.placed(at).mending is not None, what="to be noticed")
        eventually(lambda: leader.placed(at).is_damaged, what="the leader to be asked")
        three.stop(two.me, kill=True)
    three.start(two.me)
    mended(three, at)
    three.in_sync(at)
    three.same(at)


def test_another_leads_while_the_damaged_one_asks(three: Linked) -> None:
    at = filled(three)
    leader, one, two = leader_and_others(three, at)
    with deaf(three, one, two):
        damage(leader, at, 12)
        eventually(lambda: leader.placed(at).mending is not None, what="to be noticed")
        info = three.service.catalog.brokers[leader.me]
        lapse = {"registration": info.registration, "renewal": info.renewal}
        three.service.apply(kind="fail_broker", broker_id=leader.me, **lapse)
        eventually(lambda: three.service.state(at).leader not in (None, leader.me), what="another leader")
    renew(three)
    mended(three, at)
    three.in_sync(at)
    three.same(at)


@pytest.mark.parametrize("start", [4, 5, 12])
def test_what_the_leader_has_let_go_is_let_go_here(three: Linked, start: int) -> None:
    """Who is damaged does not follow, and would not hear of it: nobody has that record any more."""
    at = filled(three)
    leader, one, two = leader_and_others(three, at)
    flip(one, at, 3, 4)
    three.stop(one.me)
    for node in (leader, two):
        node.partition(at).replica.trim(start)
    with deaf(three, leader, two):
        three.start(one.me)
        found(three.nodes[one.me], at)
        eventually(lambda: three.nodes[one.me].placed(at).mending is not None, what="to be noticed")
    mended(three, at)
    assert three.nodes[one.me].log(at).state.log_start_offset == start
    check_all_stayed(three, at)


def test_more_is_lost_than_one_answer_holds(three: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges.held, "__kwdefaults__", {"bytes_max": 3_000})
    at = filled(three)
    _, one, _ = leader_and_others(three, at)
    damage(one, at, *range(2, 28))
    mended(three, at)
    check_all_stayed(three, at)
    assert one.partition(at).damage.mended_count == 26


@pytest.mark.slow
@pytest.mark.long
def test_whoever_is_done_lets_others_ask(three: Linked) -> None:
    """Two at a time of a broker: what is given up, or let go, counts as done."""
    places = three.create(partitions=5)
    for at in places:
        for number in range(4):
            three.stored(at, b"%d" % number * 100)
        three.same(at)
    node = three.nodes["a"]
    for at in places[:4]:
        damage_all(three.nodes.values(), at, 1)
    for at in places[:4]:
        in_vain(node, at)
    for at in places[:4]:
        for each in three.nodes.values():
            each.partition(at).replica.trim(2)
    for at in places[:4]:
        mended(three, at)
    damage(node, places[4], 1)
    mended(three, places[4])
    assert node.partition(places[4]).damage.mended_count == 1


def test_an_appended_record_that_is_not_committed_is_mended_likewise(three: Linked) -> None:
    """The leader is damaged above the high watermark, and a follower that fetched it has it."""
    at = filled(three)
    leader, one, _ = leader_and_others(three, at)
    before = leader.log(at).state.high_watermark
    leader.partition(at).append_now([rows(b"x" * 500)], lambda *_: None)
    eventually(lambda: one.log(at).state.log_end_offset == before + 1, what="a copy")
    flip(leader, at, before)
    segment = leader.log(at).state.view().segments[-1]
    leader.log(at).state.repair(segment)
    assert leader.log(at).state.lost_ranges == ((before, before + 1),)
    mended(three, at)
    check_all_stayed(three, at, count=COUNT + 1)


def test_a_segment_is_written_anew_only_where_it_leaves_the_reserve_free(three: Linked) -> None:
    """A segment is larger than the reserve by default. With room again the replica is mended by itself."""
    at = filled(three)
    node = three.followers(at)[0]
    size = max(segment.size(node.log(at).state.disk) for segment, _ in sealed_segments(node.log(at).state))
    three.free[node.me] = RESERVE_BYTES + size
    damage(node, at, 4)
    in_vain(node, at)
    assert node.log(at).state.lost_ranges == ((4, 5),)
    three.free[node.me] = RESERVE_BYTES + 3 * size
    mended(three, at)
    check_all_stayed(three, at)


def test_who_was_damaged_while_it_led_gives_up_its_own_end_although_the_other_log_was_compacted(three: Linked) -> None:
    """It holds records that nobody committed, and it was told with the range that records are gone for newer ones
    above its end. It asked where those stand, and never where its own last epoch ends."""
    at = filled(three, min_insync=1, cleanup="compact")
    leader, one, two = leader_and_others(three, at)
    old, others = leader.me, [one.me, two.me]
    for name in others:
        three.stop(name)
    damage(leader, at, 4)
    leader.partition(at).append_now([rows(b"nobody else has it")], Waiter())
    eventually(lambda: leader.log(at).state.durable_end == COUNT + 1, what="an fsync")
    three.stop(old)
    three.start(*others)
    three.fail(old)
    for number in range(20):
        three.stored(at, b"%d" % number)
    now = three.leader(at).log(at)
    now.state.raise_superseded(COUNT + 20, now.epochs.epoch_of(COUNT + 19))
    three.start(old)
    three.in_sync(at)
    mended(three, at)
    three.same(at)


def test_an_interrupted_copy_that_no_mark_fits_begins_anew(three: Linked) -> None:
    """M3: what the others have comes with marks of a later epoch, and it ends below its own."""
    at = filled(three, min_insync=1, cleanup="compact")
    leader, copy, other = leader_and_others(three, at)
    for name in (leader.me, other.me):
        three.stop(name)
    damage(copy, at, 4)
    copy.log(at).state.raise_superseded(COUNT + 5, copy.log(at).epochs.latest)
    three.stop(copy.me)
    three.fail(copy.me)
    three.start(leader.me, other.me)
    for number in range(20):
        three.stored(at, b"%d" % number)
    three.same(at)
    for name in (leader.me, other.me):
        log = three.nodes[name].log(at)
        assert log.epochs.epoch_of(COUNT + 19) > log.epochs.epoch_of(COUNT - 1)
        log.state.raise_superseded(COUNT + 20, log.epochs.epoch_of(COUNT + 19))
    three.start(copy.me)
    begins_anew(three, at, copy.me)
    three.in_sync(at)
    three.same(at)
