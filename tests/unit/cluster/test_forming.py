"""The way into the group: kills between any two operations of a disk, folders that are lost, turns in any order.

One broker at a time takes a turn: it goes as far as it can without waiting, and answers others from then on as it would
while it waits. All that it knows is on its disk, so a turn can be taken again from the start. A broker that has
entered writes an entry into its journal: that is what it would have acknowledged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from broker.api.errors import InvalidRequest
from broker.control import membership
from broker.control.forming import Entrance, answer_to
from broker.control.identity import Identity
from broker.control.membership import FORMING, MEMBER, Membership, group_of, store
from broker.raft.greeting import NOBODY, Hello
from tests.support.effort import first_short
from tests.support.simdisk import MODES, Crashed, SimDisk

FOLDER = "/data"
NAMED = tuple((name, f"{name}:1") for name in "abc")


class Waits(Exception):
    """It can go no further for now."""


class Machine:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.me = Identity(broker_id=name, cluster_id="x", address=f"{name}:1", bind=f"{name}:1", named=NAMED)
        self.disk = self.new_disk()
        self.entrance: Entrance | None = None
        self.is_in = self.has_acted = False
        self.refused = ""

    @staticmethod
    def new_disk() -> SimDisk:
        disk = SimDisk()
        disk.makedirs(FOLDER)
        return disk

    def answer(self, hello: Hello) -> dict[str, Any] | str:
        if self.entrance is None or self.refused:
            return NOBODY
        own = self.entrance._own
        if not self.is_in and own.state == MEMBER:
            return NOBODY  # it comes back, and does not listen yet
        return answer_to(hello, self.me, own, voters=own.first, acted=self.world.registered)

    def turn(self) -> None:
        if self.is_in or self.refused:
            return
        self.entrance = entrance = Entrance(self.disk, FOLDER, self.me, clock=lambda: 0.0)
        entrance._lobby = lambda bind: Meeting(self.world)  # type: ignore[method-assign, assignment, return-value]
        try:
            entered = entrance.enter()
            journal = entered.journal
            promised = self.world.promised.get(journal.base.node_id, 0)
            assert len(journal.entries) >= promised, f"{journal.base.node_id} has lost what it acknowledged"
            index = journal.entries[-1][1] + 1 if journal.entries else 1
            journal.add(b"\x00{}", index, 1)
            journal.sync()
        except Waits:
            return
        except InvalidRequest as error:
            self.refused = str(error)
            return
        except Crashed:
            self.stop()
            return
        self.is_in = self.has_acted = True
        self.world.entered(self.name, journal.base.node_id, entered.member, len(journal.entries))

    def stop(self, how: str = "kill") -> None:
        self.entrance, self.is_in = None, False
        rng = self.world.rng
        crash_at = rng.randrange(1, 40) if rng.random() < self.world.risk else None
        if how == "kill":
            self.disk = self.disk.after_kill(crash_at=crash_at)
        else:
            self.disk = self.disk.after_crash(rng.choice(MODES), seed=rng.randrange(1 << 30), crash_at=crash_at)


class Meeting:
    """In the place of a `Lobby`: asks at once, and does not wait."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def ask(self, addresses: Iterable[str], hello: Hello, *, timeout_s: float) -> dict[str, dict[str, Any] | str]:
        rng, machines = self.world.rng, self.world.machines
        return {
            at: "no answer" if rng.random() < self.world.risk else machines[at[0]].answer(hello) for at in addresses
        }

    def wait(self, seconds: float) -> None:
        raise Waits


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.risk = self.rng.choice((0.0, 0.1, 0.4))
        self.promised: dict[str, int] = {}
        self.registered: dict[str, str] = {}
        self.groups: dict[str, tuple[tuple[str, ...], set[str]]] = {}
        self.seen: Counter[str] = Counter()
        self.machines = {name: Machine(self, name) for name in "abc"}

    def entered(self, name: str, node_id: str, member: Membership, entries: int) -> None:
        self.promised[node_id] = entries
        if self.rng.random() < 0.5:
            self.registered[name] = node_id
        first, acted = self.groups.setdefault(member.group, (member.first, set()))  # by one that formed it
        assert member.group == group_of("x", first)
        if member.first != first:  # a kill in the middle of joining: it does not know them before it asks again
            assert not member.first
            assert node_id not in first
        acted.add(node_id)
        self.seen["formed" if node_id in first else "joined"] += 1
        able = [group for group, (first, acted) in self.groups.items() if len(acted & set(first)) * 2 > len(first)]
        assert len(able) <= 1, f"two groups could lead: {self.groups}"

    def can_lead(self) -> bool:
        """Whether no group was begun, or one has a majority that still has its ids."""
        held = set()
        for machine in self.machines.values():
            own = membership.load(machine.disk, FOLDER)
            if own is not None and (own.state == FORMING or machine.disk.exists(f"{FOLDER}/raft.log")):
                held.add(own.node_id)
        return not self.groups or any(2 * len(held & set(first)) > len(first) for first, _ in self.groups.values())

    def play(self) -> None:
        rng = self.rng
        for _ in range(60):
            machine = self.machines[rng.choice("abc")]
            match rng.random():
                case luck if luck < 0.12:
                    machine.stop("power" if rng.random() < 0.5 else "kill")
                    self.seen["stopped"] += 1
                case luck if luck < 0.18:
                    if machine.has_acted and self.seen["lost"]:
                        continue  # else a majority of those that have acknowledged something
                    self.seen["lost" if machine.has_acted else "lost before"] += 1
                    machine.stop()
                    machine.disk = Machine.new_disk()
                case luck if luck < 0.22 and machine.disk.exists(f"{FOLDER}/raft.log") and not self.seen["lost"]:
                    machine.stop()
                    machine.disk.crash_at = None
                    machine.disk.unlink(f"{FOLDER}/raft.log")
                    self.seen["lost"] += 1
                    self.seen["journal alone lost"] += 1
                case _:
                    machine.turn()
        self.risk = 0.0
        for machine in self.machines.values():
            if machine.disk.crash_at is not None and not machine.is_in:
                machine.stop()
        for _ in range(8):
            for machine in self.machines.values():
                machine.turn()


@pytest.mark.timeout(1_200)  # a minute and a half of a core, on a machine that may be busy
@pytest.mark.parametrize("seeds", first_short([range(8), range(8, 400)]), ids=["first", "others"])
def test_no_seed_forms_twice_and_all_come_in(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed)
        try:
            world.play()
            seen["beyond help"] += not world.can_lead()
            for machine in world.machines.values() if world.can_lead() else ():
                is_split = len(world.groups) > 1 and "group" in machine.refused
                assert machine.is_in or is_split, f"{machine.name} does not come in: {machine.refused}"
                seen["refused"] += bool(machine.refused)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += world.seen
    wanted = ("formed", "joined", "lost", "lost before", "journal alone lost")
    assert min(seen[what] for what in wanted) >= len(seeds) // 4, seen


def fixed_id(me: Identity) -> str:
    return f"{me.broker_id}.first@{me.address}"


def never_marked(disk: Any, folder: str, own: Membership) -> None:
    if own.state == FORMING:
        store(disk, folder, own)


@pytest.mark.parametrize(
    "owner,name,mistake", [(Identity, "new_id", fixed_id), (membership, "store", never_marked)], ids=["F1", "F2"]
)
def test_a_mistake_is_noticed(owner: Any, name: str, mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that a lost folder would have too; a folder that does not say that its journal was made."""
    monkeypatch.setattr(owner, name, mistake)

    def play() -> None:
        for seed in range(400):
            World(seed).play()

    with pytest.raises(AssertionError, match=r"has lost what it acknowledged|two groups could lead"):
        play()
