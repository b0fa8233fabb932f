"""Home of threads, loops, clocks and sockets: the drivers that feed the cores.

alone.py       what an operator of a cluster may ask, where there is one broker
assembled.py   what every broker has: folder, threads, HTTP, intake; their start and stop
activity_log.py  the stream `__activity`, where it is led
audit_log.py   the stream `__audit`, where it is led
broker.py      makes a broker, and runs it until a signal
dataplane.py   the HTTP server's thread
elapsed.py     the clock that nobody sets, and the time of day
logs.py        how it logs
looping.py     what is done again and again: a step, and what calls it
waiting.py     how somebody waits for another thread; weak_methods.py  a method of somebody who is not kept for it
stopping.py    the steps of a stop, of which one may hang
used_producers.py  which producers are used: their names are kept
no_descriptors.py  what a loop says when no connection can be accepted
without_pandas.py  why arrays of lists load no pandas here
metrics.py     what Prometheus sees; samples.py  what is read when it asks

config/        every setting of the broker, and how they are read
intake/        from NATS to appended batches, and back to acks
partitions/    the partitions of this broker: appended to, synced, watched; the catalog on its disk
cluster/       one broker of a cluster, assembled; alone it is a cluster of one
background/    retention, compaction, scrub, expiry, the disk's reserve
sinks/         the coordinator of sinks, and the stages of every partition
"""
