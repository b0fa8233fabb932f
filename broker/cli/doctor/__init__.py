"""`liftlog doctor`: is everything here as a broker needs it?

checks.py   what a check says
command.py  the command: which checks are made, and of what
folder.py   checks of the data folder: owner, lock, catalog, file times
machine.py  checks of this machine: versions, extensions, disk, limits, fsync
network.py  checks of others: the port, a running broker, NATS servers, clocks
"""
