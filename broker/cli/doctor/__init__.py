"""`liftlog doctor`: is everything here as a broker needs it?

checks.py   What a check of `liftlog doctor` says: what it found and, where that is not as it should
            be, what to do.
command.py  `liftlog doctor`: is everything here as a broker needs it, and what to do where it is
            not.
folder.py   What `liftlog doctor` looks at in the data folder: whose it is, who uses it, the
            catalog, the clock that wrote it.
machine.py  What `liftlog doctor` looks at on this machine: versions, what is compiled, disk,
            limits, fsync.
network.py  What `liftlog doctor` asks of others: the port, a running broker, NATS servers, and
            their clocks.
"""
