"""The tree of subjects against the definition of overlap, pair by pair."""

from __future__ import annotations

import random

import pytest

from broker.api.stream import settings_from
from broker.metadata import overlap
from broker.metadata.overlap import SubjectTree, covers, subjects_of

SEEDS = range(20)


def overlaps(left: str, right: str) -> bool:
    """Whether some concrete subject matches both patterns."""
    a, b = left.split("."), right.split(".")
    for i in range(min(len(a), len(b))):
        if a[i] == ">" or b[i] == ">":
            return True
        if a[i] != b[i] and "*" not in (a[i], b[i]):
            return False
    return len(a) == len(b)


def subject_of(rng: random.Random) -> str:
    tokens = [rng.choice("ab*") for _ in range(rng.randint(0, 3))]
    return ".".join([*tokens, rng.choice(["a", "b", "*", ">"])])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tree_finds_exactly_the_streams_that_overlap(seed: int) -> None:
    """Streams come and go; after each step every subject finds what comparing it with all would."""
    rng = random.Random(seed)
    tree = SubjectTree()
    live: dict[str, list[str]] = {}
    for step in range(60):
        if live and rng.random() < 0.4:
            name = rng.choice(sorted(live))
            tree.remove(name, live.pop(name))
        else:
            name = f"s{step}"
            live[name] = [subject_of(rng) for _ in range(rng.randint(1, 3))]
            tree.add(name, live[name])
        asked = [subject_of(rng) for _ in range(rng.randint(1, 2))]
        expected = {n for n, mine in live.items() if any(overlaps(a, b) for a in asked for b in mine)}
        assert tree.overlapping(asked) == expected, (asked, live)
    for name, subjects in live.items():
        tree.remove(name, subjects)
    assert tree.overlapping([">"]) == set()


@pytest.mark.parametrize(
    "left,right,expected",
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("*.b", "a.*", True),
        ("*.b", "a.c", False),
        (">", "a", True),
        ("a.*.c", "a.b.>", True),
        ("a.b", "a.b.c", False),
    ],
)
def test_overlap_is_symmetric_and_right(left: str, right: str, expected: bool) -> None:
    for here, there in ((left, right), (right, left)):
        tree = SubjectTree()
        tree.add("s", [here])
        assert overlaps(here, there) is expected
        assert tree.overlapping([there]) == ({"s"} if expected else set())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pattern_covers_the_concrete_subjects_that_overlap_it(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        pattern, subject = subject_of(rng), ".".join(rng.choice("ab") for _ in range(rng.randint(1, 4)))
        assert covers(pattern, subject) == overlaps(pattern, subject), (pattern, subject)


@pytest.mark.parametrize("partition_by", ["subject_suffix", "subject"])
@pytest.mark.parametrize("subject", [None, "orders"])
def test_each_partition_listens_on_its_own_of_the_subjects(partition_by: str, subject: str | None) -> None:
    settings = settings_from({"subject": subject, "partitions": 4, "partition_by": partition_by})
    subjects = subjects_of(settings)
    expected = [subjects[number if number < len(subjects) else 0] if subjects else "" for number in range(5)]
    assert [overlap.subject_of(settings, number) for number in range(5)] == expected
