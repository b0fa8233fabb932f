"""The sink: rows of a frame become records of streams.

writer.py        the sink, as Spark asks for it: tasks write, the driver commits
sink_options.py  its options
rows.py          what of a frame is a record, and which rows cannot be one
gathering.py     rows of a task in larger batches, before they are looked at
targets.py       the streams that rows go to, as they are when a task begins
router.py        which rows go to which partition of which stream; dead letters
outlets.py       rows on their way: appended, or staged
run.py           who writes: the sink, the run of it, its checkpoint
jobs.py          batch writes: a sink for one job, or for a transaction
digest.py        a sum over rows that does not depend on their order
letters.py       what becomes of rows that cannot be written
"""
