"""The Raft group that replicates the catalog: pysyncobj, imported nowhere else, and what closes its gaps.

node.py       one broker's part: submit, read, voters
core.py       pysyncobj's Raft, mended: what it does by itself, and what stands against it
journal.py    entries, term, vote and snapshot in one file
journal_files.py  that file with its room, and the one that takes its place
votes.py      who votes, by that log
snapshots.py  taking, sending and installing snapshots
messages.py   what each message has to be
wire.py       connections: bind address, secret, JSON
names.py      addresses of hosts, without waiting for a name server
secured.py    TLS around the connections of both of these
greeting.py   a question to a Raft port, from who takes no part in the group yet
"""
