"""What decides later appends: producers, message ids, the last record of each subject.

handover.py     A state file that goes from a leader to a follower that lacks one.
ids.py          Which message ids (`Nats-Msg-Id`) one partition has stored lately, and where. A
                table: no I/O, no clock.
memory.py       What decides whether a record is appended: producers, message ids, the last record
                of each subject.
producers.py    Which commit groups each idempotent producer has appended to one partition. A table:
                no I/O, no clock.
siphash.py      SipHash-2-4 with 128 bits, of one text or of many at once: what message ids stand as
                in `dedup.py`.
state_files.py  What decides later appends and is not a record: kept beside the log, so that
                retention does not take it.
subjects.py     Where one partition has stored the last record of each subject. A table: no I/O, no
                clock.
"""
