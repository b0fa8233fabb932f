"""Data folders of an earlier commit, kept to be opened by this one.

make.py        makes them with a commit's own brokers and clients; run by hand
contents.py    what is put into them
checks.py      what holds once they are opened
stepping.py    a broker whose commits of two sinks stand still at a step
manifest.py    what is in a folder, as clients see it; written by `make.py`, compared by the tests
keep.py        packed folders, and where a cluster of one has its Raft ports

make_checkpoints.py   makes a broker's folder with checkpoints of Spark's queries beside it; run by hand
queries.py     those queries, which both commits run

The folders are in `tests/golden/folders`. They are made once, by commit fcd1e96, and not made anew (record 164).
"""
