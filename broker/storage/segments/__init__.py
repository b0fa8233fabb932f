"""The files of one log: segments, their indexes, and the small files beside them.

ages.py        how long its records have been here
chain.py       the segments of one log; the last may be the tail
checkpoint.py  the files `partition.json` and `checkpoint`
epochs.py      the file `epochs`: leader epoch -> first offset
index.py       where each batch of a segment lies
retention.py   which segments a log may let go
scan.py        reads a segment file to its very end
segment.py     one segment: its file, its index file, what is known of them
"""
