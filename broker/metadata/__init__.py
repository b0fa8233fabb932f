"""What the cluster knows about itself: a deterministic state machine, fed with commands.

catalog.py   streams and the brokers that lead them: `apply(command) -> result`
info.py      what it knows of one stream, and of one broker
overlap.py   which subjects can carry the same message
journal.py   commands as lines of a file: encoding and checked decoding (the runtime does the I/O)
"""
