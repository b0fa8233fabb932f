"""From append to ack: what a record's leader has to know before it may say "stored". No disk, no network, no clock.

    events.py   what the core is told, and what it wants done
    insync.py   who counts: the in-sync replicas, and changes of them that are not yet confirmed
    leader.py   the core: one event in, its effects out

A core like this is driven: whoever drives it has duties, which `leader.py` lists.
"""
