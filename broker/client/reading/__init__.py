"""Records of one partition from a broker, verified, as Arrow.

fetch.py          reads one partition; Spark's executors use this
frames.py         an answer's body as verified messages
gathering.py      many stored messages as few Arrow batches
newest.py         the newest row of each key
nearest.py        which replica a reader asks
ranges.py         from where to where each partition is read
session.py        asks brokers for records: one question, one answer
"""
