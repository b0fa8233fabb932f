"""The partitions of this broker: appended to, synced, watched.

    logs on this disk ─► appends ─► core ─► fsync ─► high watermark ─► readers, offsets

open_logs.py      How many logs keep their file open: those that were appended to last, up to a
                  limit.
replica.py        One partition's log on this broker, whoever leads it: synced, checkpointed,
                  trimmed, scrubbed, and let rest.
queued_appends.py Appends that come from elsewhere than intake: made by the appenders, awaited as
                  futures.
acks.py           An ack as a value, from its append until it is told; held while there is no session.
partition.py      One partition on this broker, which leads it or may: the driver of its core
                  (`broker.replication.leader`).
acceptance.py      What it takes, and why it does not take the rest.
damage.py         What its log has lost: given up, or copied from other replicas.
stopping.py       Counts tickets of messages sorted by a number of partitions, and stops all that.
effects.py        Does what the core of a partition wants: high watermark, readers, answers, syncs.
sync.py           The fsync pool: group commit.
row_sync.py       How a partition is synced in a row with others.
watch.py          Wakes whoever waits for a partition to move on.
follower_read.py  Committed records of a partition that another broker leads, for readers that are
                  near.
consumers.py      Consumer offsets: commits appended to the offset stream, answered when durable,
                  newest in memory.
"""
