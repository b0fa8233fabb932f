"""Exactly-once sinks in a cluster, of several brokers or of one. Why: docs/adr/0092-stages-beside-their-partition.md.

    driver ─► leader of a partition: stages ─► its companion, an internal partition (replicated)
    driver ─► leader of `__commits`: coordinator ─┬─► own partitions
                                                  └─► leaders of the others, over HTTP: pin, finish, drop ...

beside.py     the companion of a partition: made, and led where the partition is
here.py       where one is alone: folders beside the logs, and no companions
hidden.py     the hidden log of stages, in that companion
questions.py  what the coordinator asks of a partition that is led elsewhere, and the answers
service.py    what the HTTP API sees; the coordinator while this broker leads `__commits`
"""
