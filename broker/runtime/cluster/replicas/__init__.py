"""The replicas that this broker has: opened, assigned by the catalog, led or following, captured, given up.

    the applied catalog ─► replicas.py ─► placed.py, one for each replica ─┬─► folders.py, the log on the disk
                                          in turns (serial_work.py)        ├─► ../link, its followers or its leader
                                                                           ├─► capturing.py, messages from NATS
                                                                           └─► leader_effects.py ─► the catalog

replicas.py     All replicas of this broker: what the catalog says goes to each, and step-outs are gathered.
placed.py       One replica under the catalog: leader, follower or resting; its step-outs.
mending.py      What it cannot read any more comes from other replicas.
leader_effects.py  What a leader's core wants done by the catalog and its followers.
isr_changes.py  Changes of in-sync replicas, and the answer to each.
capturing.py    The capture of its messages while it leads.
told_roles.py   One line of the log for the roles of many.
serial_work.py  One thing at a time for each replica, on the threads of a pool.
folders.py      The folders of placed partitions: opened, made, moved aside, removed.
log_ends.py     So far each log went, at the least: what ends below was put back from a copy.
"""
