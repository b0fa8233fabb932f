"""Records on their way to a broker, each once if a producer or sink sends them.

append.py       appends to one partition; the producer and Spark's executors use this
deliveries.py   what became of the records of a producer: futures
outgoing.py     what a user hands over, checked, and as Arrow
partitioner.py  which partition a record goes to
payloads.py     message bodies, as an event loop takes them
records.py      records in any form that users have, as Arrow batches
sequences.py    who a producer is, and how far it has counted
"""
