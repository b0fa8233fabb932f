"""Home of threads, loops, clocks and sockets: the drivers that feed the cores.

broker.py      assembles one broker and runs it until a signal
streams.py     the catalog's streams, open on this disk; control.py  what changes them, on the control loop
catalog_store.py  the catalog's journal on disk
partition.py   one partition that this broker leads: append, wait until durable
sync.py        the fsync pool: group commit
watch.py       wakes those who wait for a high watermark
nats_seam.py   how the intake parser gets behind nats-py; nats_options.py  how it logs in
inbox.py       the memory that the connection is read into
intake.py      the intake thread: NATS connection and subscriptions
flush.py       from builders to appended batches, and acks back; back-pressure
jetstream.py   whether JetStream captures the same subject
consumers.py   consumer offsets over the offset stream; expiry.py  which are forgotten
stages.py      staged batches of sinks; stage_log.py  where they lie
sinks.py       the coordinator of sinks; commits_log.py  its ledger on disk; keyed_locks.py  one lock a sink
sink_rounds.py what is done for sinks in the background; sink_service.py  their threads
cleaner.py     retention, rolling, checkpoints; compactor.py  compaction and coalescing; scrubber.py  checks all
room.py        what is kept free on the disk; open_logs.py  how many files are open; orphans.py  folders of nobody
dataplane.py   the HTTP server's thread; pacing.py  nothing is paced over loopback
metrics.py     what Prometheus sees; samples.py  what is read when it asks
settings.py    every setting of the broker; annotated.py  the same as a file; config.py  how they are read
logs.py        how it logs
"""
