"""Exactly-once sinks, driven: their coordinator, and the stages of every partition.

commits_log.py  the ledger of sinks on the disk
coordinator.py  decides, and sees to it that what was decided is finished
keyed_locks.py  one lock per name, kept only while somebody holds it or waits for it
room.py         who goes before anybody is refused for want of room
rounds.py       what is done at the start, and in each round of the cleaner
committed.py    appends that are waited for; reads of all that a log holds
stage_log.py    the hidden log of one partition's stages
groups.py       the commit group of a decision, read from the hidden log; small parts are joined
stages.py       the stages of one partition, and the commit groups made of them
stores.py       what the coordinator asks of the partitions, here or at another broker
"""
