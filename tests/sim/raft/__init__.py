"""The real pysyncobj behind its adapter, in one process and from one seed: clock, luck, messages and disks are ours.

    python -m tests.sim.raft --seed 7                    one group, its story printed
    python -m tests.sim.raft --seeds 0..1000             many, until one fails
    python -m tests.sim.raft --seed 7 --mutant NAME      with a mistake in the adapter
    python -m tests.sim.raft --scenario NAME --seed 7    a run by hand: power loss of all, damaged journals
    python -m tests.sim.raft --mutants                   within how many seeds each is found
    python -m tests.sim.raft --cover 0..100              what so many seeds have seen

world.py     brokers, disks, messages, what goes wrong, what is checked
workload.py  the commands of a real cluster, for the broker's own catalog
scenarios.py runs by hand
mutants.py   mistakes in the adapter
"""
