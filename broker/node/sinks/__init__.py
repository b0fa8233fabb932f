"""Exactly-once sinks, driven. Why: docs/adr/0092-stages-beside-their-partition.md.

    driver ─► leader of a partition: stages ─► its companion, an internal partition (replicated)
    driver ─► leader of `__commits`: coordinator ─┬─► own partitions
                                                  └─► leaders of the others, over HTTP: pin, finish, drop ...

service.py      what the HTTP API sees; the coordinator while this broker leads `__commits`
coordinator.py  decides, and sees to it that what was decided is finished
commits_log.py  the ledger of sinks on the disk
rounds.py       what is done at the start, and in each round of the cleaner
questions.py    what the coordinator asks of a partition that is led elsewhere, and the answers
stores.py       what the coordinator asks of the partitions, here or at another broker
stages.py       the stages of one partition, and the commit groups made of them
stage_log.py    the hidden log of one partition's stages
groups.py       the commit group of a decision, read from the hidden log; small parts are joined
places.py       where stages are kept, as who needs them sees it
beside.py       the companion of a partition: made, and led where the partition is
hidden.py       the hidden log of stages, in that companion
here.py         where one is alone: folders beside the logs, and no companions
committed.py    appends that are waited for; reads of all that a log holds
keyed_locks.py  one lock per name, kept only while somebody holds it or waits for it
room.py         who goes before anybody is refused for want of room
"""
