"""Exactly-once sinks, driven: their coordinator, and the stages of every partition.

commits_log.py  The ledger of sinks on the disk: the partition of `__commits`, and what its records
                say.
coordinator.py  The coordinator of all sinks: decides in `__commits`, and sees to it that what was
                decided is finished.
rounds.py       What is done for sinks in the background, at the start and at every round of the
                cleaner.
service.py      Sinks as the HTTP API sees them: coroutines in front of calls that block, and the
                stages of every partition.
stage_log.py    The hidden log of one partition's stages, and the table that its notes give.
stages.py       The stages of one partition, driven: its hidden log, and the commit groups that come
                out of it.
"""
