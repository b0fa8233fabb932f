"""The progress of consumers.

offsets.py   consumer offsets as records of the offset stream, and the newest of them in memory
"""
