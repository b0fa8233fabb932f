"""Rounds that nobody waits for: retention, compaction, scrub, expiry.

cleaner.py       retention and checkpoints
compactor.py     compaction and coalescing
doubted_clock.py the time for what deletes by age: a jump ahead is not believed at once
expiry.py        consumers that were given up are forgotten
interval_syncs.py
                 `fsync = interval`: a thread has logs synced when that is due
lasting.py       what lives as long as the process is not searched for cycles
master_keys.py   which master keys logs need
scrubber.py      reads everything again, slowly, and checks it
"""
