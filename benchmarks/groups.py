"""Groups: how soon a consumer group comes to rest after a join or a leave, where there are many groups.

Three brokers and groups of 10 members, which read a stream of 16 partitions. Members are played over HTTP by one
process beside the brokers, each over a connection of its own: they poll, release, join and leave as a client does, and
read nothing. A group has come to rest when each of its partitions is granted to one member that has heard so, no member
is asked to give one back, and members have as many, give or take one. Time counts from when the join or leave was due.

`fill_s`: all members join, 24 at a time. `rest_percent`: CPU of the three brokers together while nothing changes, of a
core. `p50_ms`, `p99_ms`: members leave and join, at random, at a steady rate. `all_p99_ms`: one member of each group
leaves at the same moment. `gone_p99_s`: one member of each falls silent, beyond its timeout. `*_cpu_ms`: of the three
brokers, for each change, with what they take meanwhile at rest. `lost` counts changes after which a group did not come
to rest within a minute, and members that were ended while they lived. `lapsed`: sessions of brokers, after all members
were there; `fill_lapsed`: before. `player_percent`: CPU of the process that plays the members, while they leave and
join at a steady rate: it shares the machine with the brokers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.group_members import Address, Group, Member, ask
from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.ours_cluster import LiftlogCluster
from benchmarks.peers import STREAM
from benchmarks.proc import cpu_s, rss_mib

SEED = 34
PARTITIONS = 16
MEMBERS = 10
AT_ONCE = 24
REST_S = 60.0
LEVEL_S = 90.0
ENV = {
    "LIFTLOG_HTTP_CONNECTIONS_MAX": "16384",
    "LIFTLOG_LIMITS_ADDRESS_CONNECTIONS_MAX": "12000",
    "LIFTLOG_LIMITS_CALLER_REQUESTS_MAX": "12000",
    "LIFTLOG_LIMITS_CALLER_POLLS_MAX": "9000",
}
"""Members are of five addresses, and so of five callers; each may have what the files of the broker allow."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is played. `changes`: so many, one each `every_s`."""

    groups: int
    changes: int
    every_s: float
    timeout_ms: int
    rest_s: float


def cases(*, tiny: bool) -> Sequence[Case]:
    if tiny:
        return [_case("groups-tiny", Load(3, 4, 0.05, 2_000, 0.2))]
    return [_case(f"groups-{groups}x{MEMBERS}", Load(groups, 300, 0.1, 30_000, 20.0)) for groups in (100, 1_000)]


def _case(name: str, load: Load) -> Case:
    return Case(
        name=name,
        metric="p99_ms",
        unit="ms",
        parameters={
            "groups": load.groups,
            "members": MEMBERS,
            "partitions": PARTITIONS,
            "changes": load.changes,
            "changes_per_s": 1 / load.every_s,
            "timeout_ms": load.timeout_ms,
            "seed": SEED,
        },
        open=_opener(load),
        targets=(Target(of="p99_ms", most=2000.0), Target(of="all_p99_ms", most=2000.0)),
        repeats_max=3,
    )


def _opener(load: Load) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def turn() -> Measures:
            with LiftlogCluster(folder, settings={"partitions": PARTITIONS}, env=ENV) as place:
                addresses = [("127.0.0.1", int(each.rpartition(":")[2])) for each in place.brokers.addresses]
                running = place.brokers.running.values()

                def lapses() -> int:
                    return sum(process.output().count("session.lapsed") for process in running)

                return asyncio.run(_Play(load, addresses, [process.pid for process in running], lapses).run())

        yield {"liftlog": turn}

    return open_sides


class _Play:
    """One turn. `lapses`: how many sessions of brokers have lapsed."""

    def __init__(self, load: Load, brokers: Sequence[Address], pids: Sequence[int], lapses: Callable[[], int]) -> None:
        self.load, self.brokers, self.pids, self.lapses = load, brokers, pids, lapses
        self.saw: Counter[str] = Counter()
        self.groups = [Group(f"group-{each}", STREAM, PARTITIONS, load.timeout_ms) for each in range(load.groups)]
        self.luck = random.Random(SEED)
        self.made = 0

    async def run(self) -> Measures:
        await self._level()
        own_s, found = time.process_time(), Measures()
        found["fill_s"], filled_s = await self._timed(self._fill())
        found["fill_lapsed"] = float(self.lapses())
        found["fill_cpu_ms"] = 1000 * filled_s / (self.load.groups * MEMBERS)
        passed_s, used_s = await self._timed(asyncio.sleep(self.load.rest_s))
        found["rest_percent"] = 100 * used_s / passed_s
        began_s = time.process_time()
        passed_s, used_s = await self._timed(self._changes())
        found["player_percent"] = 100 * (time.process_time() - began_s) / passed_s
        found["change_cpu_ms"] = 1000 * used_s / self.load.changes
        found["p50_ms"], found["p99_ms"] = self._took_ms(50, 99)
        found["all_s"], used_s = await self._timed(self._all_leave())
        found["all_cpu_ms"] = 1000 * used_s / self.load.groups
        found["all_p50_ms"], found["all_p99_ms"] = self._took_ms(50, 99)
        await self._all(self._join)
        self._took_ms(99)
        await self._all(self._vanish)
        if any(group.took_s for group in self.groups):
            found["gone_p99_s"] = self._took_ms(99)[0] / 1000 - self.load.timeout_ms / 1000
        found["rss_mib"] = max(rss_mib(pid) for pid in self.pids)
        found["refused"], found["polls"] = float(self.saw["refused"]), float(self.saw["polls"])
        found["lapsed"] = self.lapses() - found["fill_lapsed"]
        found["lost"] = float(self.saw["never_at_rest"] + self.saw["joined_again"])
        found["player_cpu_s"] = time.process_time() - own_s
        return found

    async def _level(self) -> None:
        """Groups need a feature level, which rises a moment after the last broker is there."""
        body = {"member": "first", "streams": [STREAM], "timeout_ms": self.load.timeout_ms}
        end_s = time.monotonic() + LEVEL_S
        while (told := await ask(self.brokers[0], "/v1/groups/group-first/members", body))[0] != 200:
            assert time.monotonic() < end_s, told
            await asyncio.sleep(0.2)
        await ask(self.brokers[0], "/v1/groups/group-first/members/first/leave", {"session": told[1]["session"]})

    async def _timed(self, doing: Coroutine[Any, Any, None]) -> tuple[float, float]:
        """How long it took, and the CPU time of all brokers meanwhile."""
        before_s, began_s = sum(map(cpu_s, self.pids)), time.perf_counter()
        await doing
        return time.perf_counter() - began_s, sum(map(cpu_s, self.pids)) - before_s

    async def _fill(self) -> None:
        """So many joins are under way at once; the groups are filled in no order."""
        places = self.groups * MEMBERS
        self.luck.shuffle(places)
        begun_s = time.perf_counter()
        room = asyncio.Semaphore(AT_ONCE)

        async def one(group: Group) -> None:
            async with room:
                member = await self._join(group)
                while not member.has_joined:
                    await asyncio.sleep(0.005)

        await asyncio.gather(*(one(group) for group in places))
        for group in self.groups:
            group.due_s = begun_s
            group.look()
        await self._at_rest()
        self._took_ms(99)

    async def _changes(self) -> None:
        """Leaves and joins in turns: a group that has lost a member gets another one."""
        short: list[Group] = []
        begun_s, tasks = time.perf_counter(), []
        for number in range(self.load.changes):
            await asyncio.sleep(max(0.0, begun_s + number * self.load.every_s - time.perf_counter()))
            resting = [group for group in self.groups if group.due_s is None]
            full = [group for group in resting if group not in short]
            missing = [group for group in short if group.due_s is None]
            if missing and (number % 2 or not full):
                group = self.luck.choice(missing)
                short.remove(group)
                tasks.append(asyncio.create_task(self._change(self._join, group)))
            elif full:
                group = self.luck.choice(full)
                short.append(group)
                tasks.append(asyncio.create_task(self._change(self._leave, group)))
        await asyncio.gather(*tasks)
        await self._at_rest()
        for group in short:
            await self._change(self._join, group)
        await self._at_rest()

    async def _all_leave(self) -> None:
        await self._all(self._leave)

    async def _all(self, act: Callable[[Group], Coroutine[Any, Any, Any]]) -> None:
        """The same in each group, at the same moment."""
        now_s = time.perf_counter()
        for group in self.groups:
            group.due_s = now_s
        await asyncio.gather(*(act(group) for group in self.groups))
        await self._at_rest()

    async def _change(self, act: Callable[[Group], Coroutine[Any, Any, Any]], group: Group) -> None:
        group.due_s = time.perf_counter()
        await act(group)

    async def _join(self, group: Group) -> Member:
        self.made += 1
        member = Member(group, f"member-{self.made}", self.brokers, self.made, self.saw)
        group.members.append(member)
        await member.join()
        return member

    async def _leave(self, group: Group) -> None:
        await self.luck.choice(group.members).leave()

    async def _vanish(self, group: Group) -> None:
        self.luck.choice(group.members).vanish()

    async def _at_rest(self) -> None:
        end_s = time.perf_counter() + REST_S + self.load.timeout_ms / 1000
        while any(group.due_s is not None for group in self.groups):
            if time.perf_counter() > end_s:
                self.saw["never_at_rest"] += sum(group.due_s is not None for group in self.groups)
                for group in self.groups:
                    group.due_s = None
            await asyncio.sleep(0.02)

    def _took_ms(self, *percents: int) -> list[float]:
        """Of what took time since the last call."""
        took_s = [each for group in self.groups for each in group.took_s]
        for group in self.groups:
            group.took_s.clear()
        return [1000 * float(each) for each in np.percentile(took_s or [float("inf")], percents)]
