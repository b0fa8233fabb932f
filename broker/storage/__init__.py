"""One partition's log on one disk. Has never heard of leaders, NATS, event loops or clocks.

log.py          PartitionLog: records that are judged, appended and noted; what everyone else uses
segment_log.py  Log: bytes, offsets and leader epochs; all that a follower needs
memory.py       Memory: producers (producers.py), message ids (dedup.py, siphash.py), last records of subjects
                (subjects.py); state.py  the files that they are kept in
chain.py        the segment files of one log, and the tail that appends go to
disk.py         what storage asks of a disk, and the real one: osfile.py; ahead.py  a file that is longer than what was
                written, for cheaper fsyncs; spare.py  small files for a disk that is full
segment.py      one segment: its names, and what is known of it without reading
index.py        where each batch of a segment lies
read.py         from offsets and times to ranges of files
scan.py         what a segment file holds, verified, to its very end
recovery.py     what is kept, cut or lost at an unclean open
checkpoint.py   the small files: identity and checkpoint
epochs.py       which leader wrote what
retention.py    which segments go
turns.py        stored messages in turn, each in the memory of the one before
rewrite.py      sealed segments written anew; compaction.py and coalescing.py say when and why, joining.py how
                several files become one
keymap.py       which record of a key is the newest, in a fixed number of bytes; clean_state.py  how far that went
scrub.py        everything read again and checked; around.py  a file with sectors that cannot be read
inspect.py      what is wrong in a folder: findings.py, contradictions.py, places.py; mend.py  its repair; overlay.py
rows.py         RowBatch: rows that are already Arrow; StoredGroup: a commit group that is read while it is appended
folder.py       the data folder of a broker: owner and lock

Design: docs/storage.md.
"""

from broker.storage.checkpoint import LogIdentity, LogSettings
from broker.storage.disk import Disk, File, OsDisk
from broker.storage.folder import DataFolder
from broker.storage.log import AppendResult, Encodable, PartitionLog
from broker.storage.read import FileRange, ReadPlan
from broker.storage.recovery import RecoveryReport
from broker.storage.rows import RowBatch

__all__ = [
    "AppendResult",
    "DataFolder",
    "Disk",
    "Encodable",
    "File",
    "FileRange",
    "LogIdentity",
    "LogSettings",
    "OsDisk",
    "PartitionLog",
    "ReadPlan",
    "RecoveryReport",
    "RowBatch",
]
