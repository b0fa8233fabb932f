"""From append to ack: what a record's replicas have to know before its leader may say "stored". No disk, no network, no
clock.

    messages.py   what leader and followers say to each other
    leader.py     the leader's core: one event in, its effects out; events.py names both
    insync.py     who counts: the in-sync replicas, and changes of them that are not yet confirmed
    trims.py      when a trim may be answered
    follower.py   the follower's core; following.py names its events and effects

A core like this is driven: whoever drives it has duties, which `leader.py` lists. `tests/sim` drives whole clusters.
"""
