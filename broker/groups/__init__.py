"""The progress of consumers, and pins beside it.

offsets.py   consumer offsets as records of the offset stream, and the newest of them in memory
pins.py      small texts under a name, in the same stream, that are replaced by who has seen the last one only
"""
