"""Calls to brokers: addresses, pooled connections, retries, and what the answers mean.

address.py    Where brokers are: text to `Address`. Pure.
brokers.py    Which broker is asked, and what its answer means.
calls.py      Calls of the JSON API: one request and one answer, repeated while that is safe.
forks.py      What must start afresh in a forked child: locks that another thread may have held,
              connections of the parent.
interrupt.py  How one thread ends what another is doing here: a blocked read, a pause between
              retries.
outages.py    Says once that a client waits for its brokers, and once that they answer again.
patience.py   How long a call goes on after failures: exponential pauses with jitter, up to a
              deadline.
pool.py       HTTP/1.1 exchanges over pooled keep-alive connections. Nothing of the API is known
              here.
"""
