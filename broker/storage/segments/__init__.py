"""The files of one log: segments, their indexes, and the small files beside them.

chain.py       The segment files of one log, in order. The last may be the tail, which appends go
               to.
checkpoint.py  The small files beside a partition's segments: `partition.json` and `checkpoint`.
epochs.py      Which leader wrote what: leader epoch -> offset of its first record. The file
               `epochs`.
index.py       Where each batch of a segment lies: one entry of 32 bytes per batch.
retention.py   Which segments a log may let go.
scan.py        Read a segment file from some position to its very end and say what is in it.
segment.py     One segment: a file of batches, its name, its index file, and what is known of both
               without reading.
"""
