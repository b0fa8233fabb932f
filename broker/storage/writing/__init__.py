"""The parts of a log that change it (`log.py`), each given those above it in this list.

state.py          Shared by all: where the log begins and ends, its files, its locks, its failure.
leader_epochs.py  The leaders: of the time when each record was written, and of now.
append.py         A leader's batches and a follower's messages; when a segment is sealed.
sync.py           Fsync what was appended, while appends go on.
checkpoints.py    The checkpoint: what is in the file, and when it is written anew.
truncate.py       Take back what a new leader does not have.
let_go.py         Let go of old records.
replace.py        Put a file that was written anew in the place of sealed segments.
"""
