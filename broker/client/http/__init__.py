"""Calls to brokers: addresses, pooled connections, retries, and what the answers mean.

address.py    addresses of brokers, from text
brokers.py    which broker is asked, and what its answer means
calls.py      one request and one answer, repeated while that is safe
forks.py      what begins anew in a forked child
interrupt.py  how one thread ends what another waits for
outages.py    says once that a client waits, and once that it is answered again
patience.py   how long a call goes on after failures
pool.py       HTTP/1.1 over pooled connections
profiles.py   brokers, files of TLS and a token under one name, in a file of the user's
token.py      the token that brokers are shown, and where it may go
silence.py    whether a broker that is silent stands still
tls.py        whom a client believes over TLS, and what a failed handshake means
"""
