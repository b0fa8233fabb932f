"""Changes of streams, and what an operator of a cluster does by hand.

    client ─► HTTP, any broker ─► changes.py: judge ─► a command for the controller ─► wait until it is done
    liftlog cluster ... ─► HTTP, any broker ─► admin.py: judge, say what it would cost ─► a command for the controller

changes.py  Streams are made, altered, paused, grown, trimmed, deleted.
admin.py    Replicas are moved, leaders elected, brokers drained and removed.
alone.py    What an operator may ask where there is one broker.
draining.py The plan of a drain.
losing.py   Ranges that are damaged on a leader, and who else may have them.
rescuing.py A rescue of the catalog, as an operator sees it.
"""
