"""Records on their way to a broker, each once if a producer or sink sends them.

append.py       Appending Arrow record batches to one partition: the low level, which the producer
                and Spark's executors use.
deliveries.py   What became of records that were handed to a producer: one `Delivery` per request,
                light futures into it.
outgoing.py     Records on their way out: what a user hands over, checked, and as Arrow. Pure.
partitioner.py  Which partition a record goes to. Pure; the same numbers as the broker's
                `partition_by = key`.
records.py      Records as users have them, as Arrow batches: what `append`, `send_batch` and
                `stage` take.
sequences.py    Who a producer is, and how far it has counted: the stamps by which the broker knows
                a repeated append.
"""
