"""Runs by hand of a Raft group, with the commands of a real cluster: what Jepsen did to NATS 2.12.1, to the journal.

Nothing goes wrong in them by luck. Each ends as every run does (`World.heal`): whatever was answered is there, the same
on all, and commands are carried out again.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.raft.journal import END, decode
from tests.sim.raft.world import PATH, Machine, World, clockwork

Scenario = Callable[[World], None]
STEPS = 250


def calm(world: World, steps: int = STEPS) -> None:
    """Nothing goes wrong, and commands are carried out."""
    for step in range(steps):
        world.step()
        if step % 5 == 0:
            world.do_submit()


def start_all(world: World) -> None:
    for machine in world.machines.values():
        if machine.node is None:
            world.start(machine)


def power_loss_of_all_voters(world: World) -> None:
    """All at once lose what they had not fsynced, with commands under way, five times."""
    for _ in range(5):
        calm(world)
        before = len(world.acked) + len(world.told)
        assert before, "nothing was acknowledged"
        for machine in world.machines.values():
            world.stop(machine, "power")
        start_all(world)


def _damaged(world: World, machine: Machine, damage: Callable[[World, Machine], str]) -> None:
    """It is off; its journal is damaged; it comes back, and gets a vote under another id."""
    world.stop(machine, "power")
    how = damage(world, machine)
    world.seen["journal damaged"] += 1
    world.tell(f"{machine.name}: {how}")


def _back(world: World, machine: Machine) -> None:
    """It comes back, and gets a vote, whoever else is away."""
    world.recovering = machine.name
    for _ in range(100):
        if machine.node is None:
            world.start(machine)
        for _ in range(40):
            world.step()
        world.do_submit()
        world.do_rejoin()
        nodes = [one.node for one in world.machines.values() if one.node is not None]
        if machine.node is not None and all(machine.node.node_id in node.voters() for node in nodes):
            world.recovering = None
            return
    raise AssertionError(f"{machine.name} is not back")


def _flip(world: World, machine: Machine) -> str:
    size = machine.disk.size(PATH)
    at = world.rng.choice((world.rng.randrange(size), world.rng.randrange(min(200, size)), size - 1))
    machine.disk.flip(PATH, at * 8 + world.rng.randrange(8))
    return f"a bit of byte {at} of {size} flips"


def _cut(world: World, machine: Machine) -> str:
    inode = machine.disk.names[PATH]
    size = len(inode.content)
    end = world.rng.choice((0, world.rng.randrange(size), size - 1 - world.rng.randrange(min(200, size - 1))))
    for data in (inode.content, inode.durable):
        del data[end:]
    inode.pending.clear()
    return f"its journal is cut from {size} to {end} bytes"


def _of_a_minority(damage: Callable[[World, Machine], str]) -> Scenario:
    def scenario(world: World) -> None:
        for _ in range(3):
            calm(world)
            hit = world.rng.sample(world.names, (len(world.names) - 1) // 2)
            for name in hit:
                _damaged(world, world.machines[name], damage)
            calm(world)
            for name in hit:
                _back(world, world.machines[name])

    scenario.__doc__ = "Damage in as many journals as a group may lose, while commands go on; three times."
    return scenario


def power_loss_of_all_with_damage_in_a_minority(world: World) -> None:
    """All lose power, and one of them finds its journal damaged: the others elect without its vote."""
    for damage in (_flip, _cut, _flip):
        calm(world)
        hit = world.machines[world.rng.choice(world.names)]
        for machine in world.machines.values():
            if machine is not hit:
                world.stop(machine, "power")
        _damaged(world, hit, damage)
        for machine in world.machines.values():
            if machine is not hit:
                world.start(machine)
        _back(world, hit)


def _cut_to_its_base(world: World, machine: Machine) -> str:
    """All that was appended to the file since it was made is gone, as if it had never been synced."""
    inode = machine.disk.names[PATH]
    [end] = [end for kind, _, end in decode(bytes(inode.durable))[0] if kind == END]
    for data in (inode.content, inode.durable):
        del data[end:]
    inode.pending.clear()
    return f"its journal is cut to {end} bytes, its base"


def cut_journal_of_one_that_had_acknowledged(world: World) -> None:
    """A minority lags. Among those that have it all the leader is off, and another has its journal cut: with that one's
    vote the minority would be a majority."""
    for _ in range(3):
        calm(world)
        [leader] = [one for one in world.machines.values() if one.node is not None and one.node.is_controller]
        others = [one for one in world.machines.values() if one is not leader]
        world.rng.shuffle(others)
        few = (len(world.names) - 1) // 2
        for lags in others[:few]:
            world.cut |= {pair for name in world.names for pair in ((name, lags.name), (lags.name, name))}
        before = len(world.acked) + len(world.told)
        for _ in range(5):  # now and then only one of them is slow (seed 19)
            calm(world, 90)
            if len(world.acked) + len(world.told) > before:
                break
        assert len(world.acked) + len(world.told) > before, "nothing was acknowledged meanwhile"
        hit = others[few]
        world.stop(leader, "power")
        _damaged(world, hit, _cut_to_its_base)
        world.net.clear()
        world.cut.clear()
        world.recovering = hit.name
        world.start(hit)
        calm(world, 150)
        world.start(leader)
        _back(world, hit)


SCENARIOS: dict[str, Scenario] = {
    "power_loss_of_all_voters": power_loss_of_all_voters,
    "flipped_bits_in_the_journals_of_a_minority": _of_a_minority(_flip),
    "truncated_journals_of_a_minority": _of_a_minority(_cut),
    "cut_journal_of_one_that_had_acknowledged": cut_journal_of_one_that_had_acknowledged,
    "power_loss_of_all_with_damage_in_a_minority": power_loss_of_all_with_damage_in_a_minority,
}


def play(name: str, seed: int) -> World:
    """One of them. Raises what does not hold."""
    with clockwork():
        world = World(seed, real=True)
        world.healing = True  # luck does nothing
        try:
            SCENARIOS[name](world)
            world.heal()
        finally:
            World.current = None
    return world
