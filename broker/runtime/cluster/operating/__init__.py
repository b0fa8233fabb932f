"""An operator looks at a cluster, and changes it by hand.

    liftlog cluster ... ─► HTTP, any broker ─► admin.py: judge, say what it would cost ─► a command for the controller

admin.py    Replicas are moved, leaders elected, brokers drained and removed.
draining.py The plan of a drain.
losing.py   Ranges that are damaged on a leader, and who else may have them.
rescuing.py A rescue of the catalog, as an operator sees it.
samples.py  The part of /metrics that brokers of a cluster have.
"""
