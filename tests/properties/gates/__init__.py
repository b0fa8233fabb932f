"""One broker in this process, whose disk holds a write or an fsync until a test opens the gate.

disk.py           the disk with gates
nats.py           a NATS server of a few lines
rig.py            the broker between the two, and what must hold of it afterwards
appends.py        what is held: an append of each kind, and what became of it
changes.py        what is done beside it: stop, delete, alter, ...
test_gates.py     the table: each append, held at each point, beside each change
test_mutants.py   rules taken out, one at a time: the table fails
test_accounts.py  what is counted (files, bytes under way, appends that wait) comes back to nothing
"""
