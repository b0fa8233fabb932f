"""Records of one partition from a broker, verified, as Arrow.

checking.py       The check of a received message: `verify_batch`, or the same compiled.
fetch.py          Reading committed records of one partition: the low level, which Spark's executors
                  use.
frames.py         An answer's body as verified record batches, decoded where they lie.
gathering.py      Rows of many stored messages as few Arrow batches of a size that suits the taker.
ranges.py         What a read covers: from where to where in each partition, as offsets.
reused_memory.py  Memory that is used again: blocks that Arrow borrows, and that come back when its
                  last view of them is dropped.
"""
