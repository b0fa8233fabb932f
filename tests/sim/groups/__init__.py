"""The rules of consumer groups in one process, from one seed: the catalog's and those of commits are the real ones
(`broker/metadata/groups.py`, `broker/groups/fencing.py`); what carries them is a model.

    python -m tests.sim.groups --seed 7                   one group, its story printed
    python -m tests.sim.groups --seeds 0..10000           many, until one fails
    python -m tests.sim.groups --mutants                  within how many seeds each deliberate mistake is found

world.py     brokers whose catalogs are behind, an offset log that loses what is not committed, members that stand
             still, die, are expired while they live, come again; resets and removals; messages that are late, doubled,
             lost; what must hold
mutants.py   mistakes in the rules

What must hold. V1 What a group has committed of a partition goes from 0 on without a gap and without an overlap: each
record counts once. V2 A commit that was answered is never lost, but for a reset. V3 No two members that the catalog has
read the same partition at a time. V4 Once faults have ended, all partitions are read by members that are there, evenly,
and to their ends, within a bounded number of steps. V5 Under one epoch one member commits, and none does under an
earlier one than what the log has, or what a member was told that it has begun.
"""
