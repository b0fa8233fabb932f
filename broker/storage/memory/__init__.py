"""The tables that decide later appends: producers, message ids, the last record of each subject.

handover.py     a state file goes from a leader to a follower that lacks one
ids.py          which message ids a partition has stored lately
memory.py       judges an append by the three tables
producers.py    which commit groups each idempotent producer has appended
siphash.py      the keyed hash of ids and subjects
state_files.py  the tables on the disk, beside the log
subjects.py     where the last record of each subject is
"""
