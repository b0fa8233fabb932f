"""The source: what the driver plans, and what a task reads.

    stream_reader ─► query/ ─► advance ─► plan ─► task, on an executor ─► batches for Spark

stream_reader.py  A streaming read, as Spark asks for it. query/ decides the answers.
batch_reader.py   A batch read: where it starts and ends is asked when it is planned.
pushing_reader.py The same with filters of Spark's, where Spark hands them over.
filters.py        Those filters, as options and narrowings of a read. Pure.
narrowing.py      What a query's WHERE leaves of a read, beside what the options say. Pure.
query/            The driver's side of a streaming read: what there is, where the next batch ends,
                  what is lost.
selection.py      Which streams and partitions a read is about.
where.py          Where a read starts or ends, as options say it.
positions.py      Option values and ranges, made concrete by asking the brokers once. For batch and
                  stream alike.
cluster.py        The driver's questions to the brokers: heads, positions, publishing.
asking_again.py   How long a broker that may be behind is asked again before it is believed.
offsets.py        The offset JSON: what Spark keeps in the checkpoint and hands back, for years.
advance.py        From where the query stands to where its next batch ends: the decisions, without
                  the network.
refresh.py        A frame that is planned once and read again: what it has grown by is asked then.
pins.py           What the tasks of a micro-batch, and its replays, agree on: pure.
pinning.py        The agreement itself: brokers keep it.
resolving.py      The ranges of a task as they are now, or as they are pinned.
table_options.py  The options of mode=table.
table.py          A task of mode=table: the newest row of each key of whole partitions.
plan.py           Which records go into which Spark task. Arithmetic only.
task.py           The work of an executor: read the ranges of one input partition. HTTP only,
                  nothing of the driver's.
prefetch.py       Reading ahead of Spark: a thread makes the next batch while Spark takes the one
                  before.
"""
