"""The sink: rows of a frame become records of a stream.

partitioner.py  Which partition a row of the sink goes to. Vectorised over the rows of a batch.
writer.py       The sink: rows of a frame become records of a stream, appended over HTTP by the
                executors.
"""
