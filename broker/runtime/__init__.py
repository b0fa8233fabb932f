"""A broker, assembled: threads, loops, clocks and ports are made here, and handed to the rooms below.

broker.py       makes a broker, and runs it until a signal
assembled.py    what a broker is made of: folder, threads, HTTP, intake; their start and stop
clustered.py    the rest: its part in the catalog, its link, its replicas
several.py      what it has of others where they are several: Raft, the link, companions of partitions
alone.py        where it is alone: a file, nobody, folders beside the logs
dataplane.py    the HTTP server's thread
activity_log.py the stream `__activity`, where it is led
audit_log.py    the stream `__audit`, where it is led
logs.py         how it logs
samples.py      what is read when Prometheus asks
cluster_samples.py  the part of /metrics that is about replicas and their leaders
no_descriptors.py  what a loop says when no connection can be accepted
without_pandas.py  why arrays of lists load no pandas here
"""
