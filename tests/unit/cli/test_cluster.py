"""Goal: `liftlog cluster status` says how many votes may still be lost, in words that lead to the right act."""

from __future__ import annotations

import click
import pytest

from broker.api.placements import ClusterDescription, Vote
from broker.cli.commands.cluster import _place, _votes


def cluster(*votes: tuple[str, bool, bool]) -> ClusterDescription:
    return ClusterDescription(
        cluster_id="c",
        feature_level=1,
        controller="a",
        version="0",
        brokers=(),
        votes=tuple(Vote(broker=broker, valid=valid, live=live) for broker, valid, live in votes),
    )


A, B, C = ("a", True, True), ("b", True, True), ("c", True, True)
AWAY, LOST = ("c", True, False), ("c", False, False)


@pytest.mark.parametrize(
    "votes,spare,text",
    [
        ((), -1, "not known now"),
        ((A,), 0, "1 of 1 are there, 1 are needed"),
        ((A, B, C), 1, "3 of 3 are there, 2 are needed"),
        ((A, B, AWAY), 0, "2 of 3 are there, 2 are needed: keep those brokers running, none may be lost now"),
        (
            (A, B, LOST),
            0,
            "2 of 3 are there, 2 are needed; lost with a disk, to be replaced: c: keep those brokers running, none may"
            " be lost now",
        ),
        ((A, B), 0, "2 of 2 are there, 2 are needed: keep those brokers running, none may be lost now"),
        ((A, ("b", True, False), AWAY), -1, "1 of 3 are there, 2 are needed: nothing can be decided now"),
    ],
)
def test_votes_are_told_in_words(votes: tuple[tuple[str, bool, bool], ...], spare: int, text: str) -> None:
    found = cluster(*votes)
    assert (found.votes_to_spare, _votes(found)) == (spare, text)


def test_a_partition_is_named_by_its_stream_and_number() -> None:
    assert [_place("orders"), _place("orders/3")] == [("orders", None), ("orders", 3)]
    for wrong in ("orders/", "/3", "orders/x", "orders/-1", "a/b/c"):
        with pytest.raises(click.BadParameter, match="must be STREAM"):
            _place(wrong)
