"""The Python client: sync, over HTTP; what the command line, Spark, notebooks and tests use.

    client.py         `connect`, `Client`: streams, offsets, consumers
    reader.py         `RecordReader`: records of a stream as Arrow batches
    producer.py       `Producer`: records to a stream, batched
    nats_publish.py   messages to a NATS subject, acks counted (loads nats-py when called)
    answers.py        what brokers answer, as frozen dataclasses
    fetch.py          one partition's records, the low level (Spark's executors use only this)
    frames.py         an answer's body as verified batches
    brokers.py        whom to ask, and what the answer means
    pool.py           HTTP exchanges over kept connections
    patience.py       pauses and deadlines after failures
    interrupt.py      ending another thread's wait
    address.py        where brokers are

Names are loaded when they are asked for, so that `broker.client.fetch` costs only what it needs. Nothing
here loads nats-py, aiohttp, grpc, pandas or pyspark by being imported.
"""
