"""Goal: the right vote is changed next. Method: a model of what the controller does with the answers."""

from __future__ import annotations

import random

import pytest

from broker.metadata.cluster import Cluster
from broker.metadata.info import BrokerInfo
from broker.metadata.voting import VOTERS_MAX, address, next_change, owner


def broker(name: str, raft: str, *, live: bool = True, stopping: bool = False) -> BrokerInfo:
    return BrokerInfo(
        broker_id=name, incarnation="i", http="", grpc="", registration=1, is_live=live, is_stopping=stopping, raft=raft
    )


def cluster(*infos: BrokerInfo) -> Cluster:
    return Cluster(brokers={info.broker_id: info for info in infos})


def node(name: str, life: int = 1) -> str:
    return f"{name}.{life}@{name}:1"


def test_ids_say_whose_they_are() -> None:
    assert owner("b.with.dots.0a1b@[::1]:9294") == "b.with.dots"
    assert address("b.with.dots.0a1b@[::1]:9294") == "[::1]:9294"


def test_a_lost_journal_goes_before_its_broker_votes_again() -> None:
    """V1."""
    known = cluster(broker("a", node("a")), broker("b", node("b", 2)), broker("c", node("c")))
    voters = [node("a"), node("b"), node("c")]
    assert next_change(known, voters, node("a")) == ("rem", node("b"))
    assert next_change(known, [node("a"), node("c")], node("a")) == ("add", node("b", 2))
    assert next_change(known, [node("a"), node("b", 2), node("c")], node("a")) is None


def test_who_is_merely_away_keeps_its_vote_and_who_was_removed_does_not() -> None:
    """V2, V3."""
    known = cluster(broker("a", node("a")), broker("b", node("b"), live=False), broker("d", node("d")))
    voters = [node("a"), node("b"), node("c")]
    assert next_change(known, voters, node("a")) is None
    known.removed[node("c")] = "c"
    assert next_change(known, voters, node("a")) == ("rem", node("c"))
    assert next_change(known, [node("a"), node("b")], node("a")) == ("add", node("d"))


@pytest.mark.parametrize("count,votes", [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (9, 5)])
def test_votes_are_odd_and_at_most_five(count: int, votes: int) -> None:
    """V4: from one voter on, until nothing changes any more."""
    known = cluster(*(broker(f"b{i}", node(f"b{i}")) for i in range(count)))
    voters = [node("b0")]
    while (change := next_change(known, voters, node("b0"))) is not None:
        assert change[0] == "add"
        voters.append(change[1])
    assert len(voters) == votes <= VOTERS_MAX


def test_who_stops_is_dead_or_shares_an_address_gets_no_vote() -> None:
    known = cluster(
        broker("a", node("a")),
        broker("b", node("b"), stopping=True),
        broker("c", node("c"), live=False),
        broker("d", "d.1@a:1"),
        broker("e", ""),
    )
    assert next_change(known, [node("a")], node("a")) is None


def test_whatever_happens_it_comes_to_rest_and_no_lost_id_votes() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        lives = {f"b{i}": 1 for i in range(rng.randint(1, 7))}
        voters = {node(name) for name in sorted(lives)[: rng.choice((1, 3, 3, 5))]}
        known = cluster(*(broker(name, node(name)) for name in lives))
        for _ in range(20):
            name = rng.choice(sorted(lives))
            if rng.random() < 0.5:
                lives[name] += 1
            known.brokers[name] = broker(name, node(name, lives[name]), live=rng.random() < 0.8)
            for _ in range(20):
                me = next((v for v in sorted(voters) if v == known.brokers[owner(v)].raft), "")
                change = next_change(known, sorted(voters), me)
                if change is None:
                    break
                (voters.add if change[0] == "add" else voters.remove)(change[1])
                assert len({owner(voter) for voter in voters}) == len(voters)
            else:
                raise AssertionError(f"seed {seed}: it never comes to rest: {voters}")
            assert all(known.brokers[owner(voter)].raft == voter for voter in voters), seed
            assert len(voters) <= VOTERS_MAX
