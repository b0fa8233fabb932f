"""Consumer groups as state: who is granted what, and when it goes to somebody else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from broker.api.errors import GroupInUse
from broker.metadata.assignment import assign
from broker.metadata.groups import Grant, Groups

COUNTS: Mapping[str, int] = {"orders": 4}


def joined(groups: Groups, member: str, *, instance: str = "", streams: tuple[str, ...] = ("orders",)) -> int:
    return groups.join("billing", member, streams, timeout_ms=10_000, counts=COUNTS, instance=instance)


def held(groups: Groups, member: str) -> dict[int, Grant]:
    return {number: grant for (_, number), grant in groups.named["billing"].of(member).items()}


def test_the_first_member_has_all_partitions_each_under_an_epoch_of_its_own() -> None:
    groups = Groups()
    joined(groups, "a")
    assert set(held(groups, "a")) == {0, 1, 2, 3}
    assert len({grant.epoch for grant in held(groups, "a").values()}) == 4


def test_a_second_member_gets_what_the_first_one_releases_and_nothing_before() -> None:
    groups = Groups()
    joined(groups, "a")
    joined(groups, "b")
    asked_back = {number for number, grant in held(groups, "a").items() if grant.is_revoked}
    assert (len(asked_back), held(groups, "b")) == (2, {})
    first = min(asked_back)
    groups.release("billing", "a", {("orders", first): held(groups, "a")[first].epoch})
    assert set(held(groups, "b")) == {first}
    assert held(groups, "b")[first].epoch > max(grant.epoch for grant in held(groups, "a").values())


def test_a_release_of_an_earlier_grant_changes_nothing() -> None:
    groups = Groups()
    session = joined(groups, "a")
    earlier = {("orders", number): grant.epoch for number, grant in held(groups, "a").items()}
    groups.end("billing", {"a": session}, COUNTS)
    joined(groups, "a")
    before = held(groups, "a")
    groups.release("billing", "a", earlier)
    groups.release("billing", "b", {("orders", number): grant.epoch for number, grant in before.items()})
    groups.release("unknown", "a", earlier)
    assert held(groups, "a") == before


def test_what_was_asked_back_stays_if_the_other_member_leaves_before_it_is_released() -> None:
    groups = Groups()
    joined(groups, "a")
    before = held(groups, "a")
    session = joined(groups, "b")
    assert groups.end("billing", {"b": session}, COUNTS)
    assert held(groups, "a") == before
    group = groups.named["billing"]
    assert {partition: grant.member for partition, grant in group.grants.items()} == group.target


def test_the_end_of_an_earlier_session_changes_nothing() -> None:
    groups = Groups()
    session = joined(groups, "a")
    assert groups.end("billing", {"a": session}, COUNTS)
    later = joined(groups, "a")
    assert later != session
    assert not groups.end("billing", {"a": session}, COUNTS)
    assert not groups.end("billing", {"b": later}, COUNTS)
    assert not groups.end("unknown", {"a": later}, COUNTS)
    assert len(held(groups, "a")) == 4


def test_who_joins_twice_has_the_same_session_and_grants() -> None:
    groups = Groups()
    session, before = joined(groups, "a"), held(groups, "a")
    assert joined(groups, "a") == session
    assert held(groups, "a") == before


def test_whoever_takes_a_static_members_place_has_its_partitions_under_new_epochs() -> None:
    groups = Groups()
    joined(groups, "a", instance="one")
    joined(groups, "b")
    for number, grant in held(groups, "a").items():
        if grant.is_revoked:
            groups.release("billing", "a", {("orders", number): grant.epoch})
    before, others = held(groups, "a"), held(groups, "b")
    joined(groups, "c", instance="one")
    assert held(groups, "a") == {}
    assert held(groups, "b") == others
    assert set(held(groups, "c")) == set(before)
    assert min(grant.epoch for grant in held(groups, "c").values()) > max(grant.epoch for grant in before.values())


def test_a_group_that_is_made_anew_uses_no_epoch_twice() -> None:
    groups = Groups()
    session = joined(groups, "a")
    used = max(grant.epoch for grant in held(groups, "a").values())
    with pytest.raises(GroupInUse):
        groups.fence("billing", forget=True)
    groups.end("billing", {"a": session}, COUNTS)
    assert groups.fence("billing", forget=True) > used
    assert "billing" not in groups.named
    joined(groups, "a")
    assert min(grant.epoch for grant in held(groups, "a").values()) > used


def test_partitions_come_and_go() -> None:
    groups = Groups()
    joined(groups, "a", streams=("orders", "bills"))
    groups.fit({"orders": 1, "bills": 2})
    assert set(groups.named["billing"].grants) == {("orders", 0), ("bills", 0), ("bills", 1)}
    groups.fit({})
    assert groups.named["billing"].grants == {}


def test_what_is_added_while_a_group_reads_its_stream_is_known() -> None:
    """G13."""
    groups, orders, bills = Groups(), {("orders", 4)}, {("bills", 0), ("bills", 1)}
    session = joined(groups, "a")
    assert groups.named["billing"].added == frozenset()
    groups.fit({"orders": 5, "bills": 2})
    assert groups.named["billing"].added == orders
    counts = {"orders": 5, "bills": 2}
    session_b = groups.join("billing", "b", ("orders", "bills"), timeout_ms=10_000, counts=counts)
    assert groups.named["billing"].added == orders, "it reads what was there before it did"
    at, grant = next((at, each) for at, each in groups.named["billing"].grants.items() if each.is_revoked)
    groups.release("billing", "a", {at: grant.epoch})
    assert groups.named["billing"].added == orders
    assert Groups.restore(groups.snapshot()) == groups
    groups.fit({"orders": 5})
    groups.fit({"orders": 5, "bills": 2})
    assert groups.named["billing"].added == orders | bills, "made anew"
    groups.fit({"orders": 6, "bills": 3}, notes_added=False)
    assert groups.named["billing"].added == orders | bills
    groups.end("billing", {"b": session_b}, {"orders": 6, "bills": 3})
    assert groups.named["billing"].added == orders, "nobody reads the others"
    groups.end("billing", {"a": session}, {"orders": 6, "bills": 3})
    assert (groups.named["billing"].added, "added" in str(groups.snapshot())) == (frozenset(), False)


def test_a_copy_keeps_what_it_has() -> None:
    groups = Groups()
    joined(groups, "a")
    copy = groups.copy()
    joined(groups, "b")
    assert set(copy.named["billing"].members) == {"a"}


@pytest.mark.parametrize("seed", range(40))
def test_an_assignment_is_even_moves_as_little_as_it_can_and_repeats_itself(seed: int) -> None:
    luck = random.Random(seed)
    counts = {f"s{number}": luck.randint(0, 9) for number in range(luck.randint(1, 3))}
    members = [f"m{number}" for number in range(luck.randint(1, 6))]
    is_alike = luck.random() < 0.5
    streams = {
        each: tuple(counts) if is_alike else tuple(luck.sample(sorted(counts), luck.randint(0, len(counts))))
        for each in members
    }
    everything = [(name, number) for name, count in counts.items() for number in range(count)]
    before = {each: luck.choice([*members, "gone"]) for each in everything if luck.random() < 0.8}
    after = assign(streams, counts, before)
    assert after == assign(dict(reversed(streams.items())), dict(reversed(counts.items())), before)
    assert set(after) == {each for each in everything if any(each[0] in streams[member] for member in members)}
    loads = Counter(dict.fromkeys(members, 0)) + Counter(after.values())
    for partition, member in after.items():
        assert partition[0] in streams[member]
        assert all(loads[other] >= loads[member] - 1 for other in members if partition[0] in streams[other])
    if is_alike:
        kept = Counter(member for each, member in before.items() if member in members)
        least, more = divmod(len(everything), len(members))
        most = sorted((kept[member] for member in members), reverse=True)
        stay = sum(min(count, least + (at < more)) for at, count in enumerate(most))
        assert sum(after[each] == member for each, member in before.items()) == stay
