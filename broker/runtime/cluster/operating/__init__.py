"""What an operator sees of a cluster, and does to it by hand.

    liftlog cluster ... ─► HTTP, any broker ─► admin.py: judge, say what it would cost ─► a command for the controller

admin.py    Replicas are moved, leaders elected, brokers drained and removed.
losing.py   What is damaged on a leader, and who else may have it.
rescuing.py A rescue of the catalog, as an operator sees it.
samples.py  What /metrics says of a broker of several.
"""
