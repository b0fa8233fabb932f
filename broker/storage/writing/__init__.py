"""What changes a log: the parts of `Log` (`segment_log.py`), each given those above it in this list.

state.py          What all share: where the log begins and ends, its files, its locks, its failure.
leader_epochs.py  Who led when each record was written, and who leads now.
append.py         A leader's batches and a follower's messages; when a segment is sealed.
sync.py           Fsync what was appended, while appends go on.
checkpoints.py    The checkpoint: what is in the file, and when it is written anew.
truncate.py       Take back what a new leader does not have.
let_go.py         Let go of old records.
replace.py        Put a file that was written anew in the place of sealed segments.
part_method.py    A method of a part, under a name of the whole.
"""
