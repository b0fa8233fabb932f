"""Stored files looked at from outside: verify, repair, scrub.

contradictions.py  Where stored bytes contradict each other: a batch and its rows, a segment and its
                   index, commit groups, a gap.
findings.py        What an inspection finds in a partition's folder, and what each kind of finding
                   means.
inspection.py      Read a partition's folder, say what is wrong in it, change nothing. Takes no
                   lock.
places.py          From a path that somebody names to the partitions that it holds, and whether a
                   broker has them open.
repair.py          Repair a partition's folder: what the next start of the broker does, done now,
                   and a report.
scrub.py           Read what a log has on disk, piece by piece, and check that it is what was
                   written.
"""
