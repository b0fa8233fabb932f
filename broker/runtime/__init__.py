"""Home of threads, loops, clocks and sockets: the drivers that feed the cores.

broker.py      assembles one broker and runs it until a signal
control.py     what changes the catalog: create, alter, delete, on the control loop
catalog_store.py  the catalog's journal on disk
partition.py   one partition that this broker leads: append, wait until durable
sync.py        the fsync pool: group commit
watch.py       wakes those who wait for a high watermark
nats_seam.py   how the intake parser gets behind nats-py
intake.py      the intake thread: NATS connection, flushing, acks, back-pressure
consumers.py   consumer offsets over the offset stream
cleaner.py     retention, rolling, checkpoints
dataplane.py   the HTTP server's thread
metrics.py     what Prometheus sees
config.py      every setting of the broker; logs.py  how it logs
"""
