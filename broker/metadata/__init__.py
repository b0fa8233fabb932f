"""What the cluster knows about itself: a deterministic state machine, fed with commands.

catalog.py     streams: `apply(command) -> result`; whatever is known is part of it
cluster.py     brokers and partitions: the state, and what several commands do with it
broker_commands.py     a broker starts, lives, fails, stops, goes
partition_commands.py  elections, in-sync replicas, step-outs, reassignment
partition.py   one partition, and how it may change
placement.py   where new replicas go
fields.py      fields of commands, checked
info.py        what it knows of one stream, and of one broker
overlap.py     which subjects can carry the same message
journal.py     commands as lines of a file: encoding and checked decoding (the runtime does the I/O)
"""
