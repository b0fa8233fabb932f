"""The story of a run, for a reader who has not seen the code run: who led, what was stored, what was said.

A whole story has a line for each change of state, and a few hundred for appends, commits and acks. `shortened` leaves
what concerns the partition that something is wrong with:

    its leaders ... the last events of its replicas ... what each of them holds by now ... the rule that is broken

Appends, commits and acks between two events become one line each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tests.sim import checker
from tests.sim.world import Line

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

LINES_MAX: Final = 14
RULES: Final = {
    label: " ".join(text.split())
    for label, text in re.findall(
        r"\b([A-Z]\d|TRIM|KEPT|GROW|GONE|MOVE)  (.+?)(?=\n[A-Z]|\n\n|    [A-Z]\d  |$)", checker.__doc__ or "", re.S
    )
}
RULES["G4"] = "a record of an idempotent producer, or with an id, is there once, and a repeat of it is known"
RULES["R8"] = "the catalog loses no command: whoever is equally far has the same one"


def folded(lines: Iterable[Line]) -> Iterator[Line]:
    """With one line for all appends, commits or acks of the same kind between two events."""
    open_: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line.is_detail:
            before = open_.pop((line.who, line.text), line)
            open_[line.who, line.text] = line._replace(
                first=min(before.first, line.first), end=max(before.end, line.end)
            )
        else:
            yield from open_.values()
            open_.clear()
            yield line
    yield from open_.values()


def shortened(cluster: Cluster, failure: str) -> str:
    """The events before a violation, the state by now, and the rule that does not hold."""
    world, rule = cluster.world, failure.partition(":")[0]
    name = next((name for name in cluster.metadata.states if f" {name}: " in f" {failure} "), "")
    lines = [line for line in world.story if line.who != "CHECK" and _concerns(cluster, name, line)]
    lines = list(folded(lines))
    kept, before = lines[-LINES_MAX:], lines[:-LINES_MAX]
    led = [line for line in before if " leads epoch " in line.text][-2:]
    since = kept[0].at_ms if before else 0.0
    led += [line for line in _about(world.story, name, failure) if line.at_ms < since]
    text = [f"What concerns {name or 'it'}, of {len(world.story)} lines of the story (all of them: --whole):", ""]
    text += [*map(str, sorted(led)), *(["     ..."] if len(lines) > LINES_MAX else []), *map(str, kept)]
    said = [f"{rule}: {RULES[rule]}."] if rule in RULES else []
    return "\n".join([*text, "", *_by_now(cluster, name), "", *said, f"Broken: {failure}"])


def _about(story: list[Line], name: str, failure: str) -> list[Line]:
    """How the record came that the failure names first: who appended it, last, and acknowledged it."""
    named = re.search(r"\[(\d+), \d+\) of epoch|acked at (\d+)", failure)
    if named is None:
        return []
    at = int(named[1] or named[2])
    lines = [line for line in story if line.text.startswith(f"{name}: ") and line.first <= at < line.end]
    return [[line for line in lines if what in line.text][-1] for what in ("appends", "acks") if what in str(lines)]


def _concerns(cluster: Cluster, name: str, line: Line) -> bool:
    if not name:
        return not line.is_detail
    about = re.match(r"(\S+): ", line.text)
    if about and about[1] in cluster.metadata.states:
        return about[1] == name
    return line.who == "faults" or line.who in _replicas(cluster, name)


def _replicas(cluster: Cluster, name: str) -> list[str]:
    state = cluster.metadata.states[name]
    return sorted({*state.replicas, *state.isr, *state.last_isr, state.leader or state.replicas[0]})


def _by_now(cluster: Cluster, name: str) -> list[str]:
    """The records that each replica holds."""
    if not name:
        return []
    state, known = cluster.metadata.states[name], cluster.checker.known[name]
    acked = max((offset for _, offset, _ in known.acked), default=-1)
    text = [f"{name} by now: committed is up to {known.end}; the last record acked under `all` is {acked}"]
    for who in _replicas(cluster, name):
        broker = cluster.brokers[who]
        replica, shadow = broker.replicas.get(name), []
        said = "leader" if state.leader == who else "in the ISR" if who in state.isr else "out of the ISR"
        if replica is None or replica.log is None:
            text.append(f"    {who}  {said:<14}  no log")
            continue
        shadow = replica.shadow
        how = "" if broker.process else ", and does not run"
        end = shadow[-1].next if shadow else replica.log.state.log_end_offset
        text.append(f"    {who}  {said:<14}  ends at {end}, {replica.durable_end} of it durable{how}")
    return text
