"""The progress of consumers, and pins beside it.

offsets.py   consumer offsets as records of the offset stream, and the newest of them in memory
fencing.py   which commits of a consumer group count
progress.py  how far consumer groups are, in the same stream
pins.py      small texts under a name, in the same stream, that are replaced by who has seen the last one only
"""
