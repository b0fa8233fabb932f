"""The cluster's knowledge of itself: a deterministic state machine, fed with commands.

catalog.py     streams: `apply(command) -> result`; whatever is known is part of it
cluster.py     brokers and partitions: the state, and what several commands do with it
broker_commands.py     a broker starts, lives, fails, stops, goes
partition_commands.py  elections, in-sync replicas, step-outs, reassignment
controller.py  what the broker that leads Raft does by itself: sessions, elections at their deadline, balance
leader_reports.py  which reports that a leader cannot be reached become commands
session.py     a session, as the broker itself counts it
heard.py       which brokers have said something of late: to whom a damaged replica gives way
voting.py      which brokers have a vote in the Raft group
rescue.py      the catalog has lost commands: it is fitted to the logs
growth.py      a stream gets more partitions, or more replicas
partition.py   one partition, and how it may change
placement.py   where new replicas go
shapes.py      what each field of each command has to be
fields.py      fields of commands, read: whether they are there, and their defaults
info.py        what it knows of one stream, of one broker, of a rescue
producers.py   ids of idempotent producers, and their names
groups.py      consumer groups: members, and which partitions they are granted
group_commands.py  commands of consumer groups
activity.py    what happens to streams and groups, until it stands in `__activity`
member_lives.py    which of their members live
member_watch.py    that, counted by each broker, for whoever is the controller next
assignment.py  which member of a group is to read which partition
access.py      tokens and grants: who may do what
overlap.py     which subjects can carry the same message
room.py        which commands are refused first on a full disk
journal.py     commands as lines of a file: encoding and checked decoding (drivers do the I/O)
"""
