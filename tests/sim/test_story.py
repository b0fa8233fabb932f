"""A story can be followed: of a mistake it says who led, what was appended, committed and acknowledged, who has it by
now, and which rule that breaks, on a screen.
"""

from __future__ import annotations

import pytest

from tests.sim import mutants, scenarios
from tests.sim.cluster import play
from tests.sim.story import LINES_MAX, folded, shortened
from tests.sim.world import Line, told


def test_appends_between_two_events_are_one_line() -> None:
    lines = [
        Line(1, "b1", "p0: appends {span} in epoch 3", 5, 7),
        Line(2, "b1", "p0: commits up to {end} in epoch 3", 7, 7),
        Line(3, "b1", "p0: appends {span} in epoch 3", 7, 9),
        Line(4, "b1", "is gone (kill)"),
        Line(5, "b1", "p0: appends {span} in epoch 3", 9, 10),
    ]
    assert told(folded(lines)) == (
        "   0.002  b1        p0: commits up to 7 in epoch 3\n"
        "   0.003  b1        p0: appends [5, 9) in epoch 3\n"
        "   0.004  b1        is gone (kill)\n"
        "   0.005  b1        p0: appends [9, 10) in epoch 3"
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "truncates by the high watermark alone",
            [" leads epoch ", " by now: "],
        ),
        ("does not count a pending addition", [" in the ISR      ends at ", " by now: "]),
        ("learns nothing from the log when it begins to lead", [" times, at ["]),
    ],
)
def test_the_story_of_a_mistake_fits_on_a_screen_and_ends_with_the_rule(name: str, says: list[str]) -> None:
    mutant = mutants.named(name)
    with mutants.applied(name):
        cluster, failure = play(mutant.seed)
    text = shortened(cluster, failure)
    assert [each for each in says if each not in text] == []
    assert len(text.splitlines()) <= LINES_MAX + 20
    assert text.splitlines()[-1] == f"Broken: {failure}"
    assert text.splitlines()[-2].startswith(failure.partition(":")[0])


def test_a_mistake_that_a_script_shows_is_told_by_what_the_script_says_then() -> None:
    text = mutants.script_with(mutants.named("asks in who would undo a trim"))
    assert "+follower c 9: ask-isr add=c" in text


def test_a_scenario_is_told_too() -> None:
    mutant = mutants.named("believes a tail that a header disproves")
    with mutants.applied(mutant.name):
        cluster = scenarios.made(mutant.script, 0)
        failure = scenarios.played(cluster, mutant.script)
    assert "had fsynced" in shortened(cluster, failure)


def test_a_mistake_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="nearest name is 'acks before the ISR has it'"):
        mutants.named("acks before ISR has it")
