"""Rounds that nobody waits for: retention, compaction, scrub, expiry, the disk's reserve.

cleaner.py       What happens in the background of all partitions: one thread, one round after the
                 other.
compactor.py     Sealed segments are written anew: one thread, one partition after the other, a
                 little at a time.
disk_reserve.py  Room on the disk: what is kept free for the broker's own small files, and who has
                 to stop for that.
expiry.py        Consumers that were given up: which ones are forgotten.
interval_syncs.py
                 `fsync = interval`: a thread that has logs synced when that is due.
scrubber.py      The scrub of all partitions: one thread that reads everything again, slowly, and
                 checks it.
"""
