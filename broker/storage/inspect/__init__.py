"""Stored files looked at from outside: verify, repair, scrub.

contradictions.py  where stored bytes contradict each other
findings.py        what an inspection finds, and what that means
inspection.py      reads a partition's folder and says what is wrong in it
places.py          from a path to the partitions that it holds
repair.py          does what the next start would do, and reports it
scrub.py           reads what a log has on disk, piece by piece, and checks it
"""
