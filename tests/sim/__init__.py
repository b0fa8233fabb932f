"""Whole clusters in one process, from one seed: the broker's own drivers of replicas over the real storage, on disks,
networks and clocks that fail.

    python -m tests.sim --seed 7              one cluster, its story printed      (or: make sim SEED=7)
    python -m tests.sim --mutant X            the same with a deliberate mistake in the protocol
    python -m tests.sim --seeds 0..1000       many, until one fails
    python -m tests.sim --mutants             how many seeds each mistake survives
    python -m tests.sim --raft --seeds 0..50  the same clusters, their catalog over the real pysyncobj
    python -m tests.sim --cover 0..100        what so many seeds have seen

    world.py      the clock, what is to happen when, luck, the story
    network.py    messages that are late, lost, doubled; links that are cut one way
    metadata.py   the plane that the catalog (`broker.metadata`) comes through: commands are late, doubled or lost,
                  answers are lost, controllers change
    joined.py     in its place: the real pysyncobj, a node in each process
    machine.py    a disk, clocks, a process that comes and goes; controlling.py  its session, and the controller's core
    driven/       what a process runs: the real drivers, and what steps them
    joining.py    an operator who lets brokers join and leave, and what must hold of them
    clients.py    publishers that try again, producers that repeat old groups, consumers that remember
    stored.py     a stored batch, as the checker knows it
    checker.py    R1-R8, S1-S3, from outside: after each step, and at the end; rewritten.py  what is left of a log that
                  was compacted, and what its joined batches stand for; mended.py  what was copied for damaged records
    faults.py     what goes wrong, and how often; commands.py  of it, what concerns the controller, and operators
    cluster.py    a run, and its end; scenarios.py  runs by hand, staged.py  those of the catalog, stage.py  their means
    story.py      of a story what concerns a violation
    quick.py      what makes seeds cheaper, and their stories no others
    mutants.py    deliberate mistakes: within how many seeds each is found, or which script or scenario shows it

Fault model. Any process may be killed or stopped, any machine lose power, all at once too; disks keep what was fsynced.
A disk that loses what it had fsynced (a wiped folder, flipped bits, a file that is cut) does so while another member of
the in-sync replicas, or of the last ones, has its own. Where luck goes on to take that one too, nothing is promised of
the partition any more: such runs are counted (`lost`).
"""
