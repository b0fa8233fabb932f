"""One partition's log on one disk. Has never heard of leaders, NATS, event loops or clocks.

log.py          PartitionLog: records that are judged, appended and noted; what everyone else uses, and its parts
remembered.py   what is remembered beside the records: read when needed, kept in state files
tracking.py     last records of subjects: how their table comes to be
opening.py      how a log is made, opened, and opened again once it has failed
log_reader.py   its part that reads: plans, verified messages, times
read.py         from offsets and times to ranges of files
blooms.py       which subjects and keys batches may hold: remembered of reads
select.py       a plan without the records that a reader does not want
picking.py   rows of stored messages that are wanted, found and gathered
project.py      a plan without the columns that a reader does not want
column_crcs.py  the CRCs of the columns of batches: remembered of reads
made.py         where messages that are made for one answer are kept
recovery.py     what is kept, cut or lost at an unclean open
aside.py        batches of a log that was moved aside
torn_tail.py    what stays of the last segment, and where it is cut
rows.py         rows that are already Arrow, and commit groups that are read while they are appended
folder.py       the data folder of a broker: owner and lock

writing/        its parts that write: append, sync, checkpoint, truncate, let go, replace
disk/           what storage asks of a disk, and the real one
segments/       the files of one log: segments, indexes, checkpoint, epochs
memory/         what decides later appends: producers, message ids, last records of subjects
encrypted/      logs whose records are encrypted on disk
rewrite/        sealed segments written anew: compaction and coalescing
inspect/        what is wrong in a folder, its repair, and the scrub

Design: docs/reference/storage.md.
"""

from broker.storage.disk import Disk, File, OsDisk
from broker.storage.folder import DataFolder
from broker.storage.log import AppendResult, Encodable, PartitionLog
from broker.storage.read import FileRange, ReadPlan
from broker.storage.recovery import RecoveryReport
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogIdentity, LogSettings

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
