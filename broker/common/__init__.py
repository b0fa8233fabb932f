"""What all drivers use: clocks, waits, loops, counters, the room on the disk. Knows no partition.

disk_reserve.py  what is kept free on the disk, for whom, and who stops first as it goes
elapsed.py       the clock that nobody sets, and the time of day
looping.py       what is done again and again: a step, and what calls it
metrics.py       what Prometheus sees
stopping.py      the steps of a stop, of which one may hang
waiting.py       how somebody waits for another thread
weak_methods.py  a method of somebody who is not kept for it
"""
