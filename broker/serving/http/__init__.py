"""Connections, bodies and the application: HTTP without a word of liftlog's API.

app.py          The HTTP application of a broker: one table of endpoints, one middleware, a clean
                end.
body.py         Request bodies: nothing is read beyond a limit, and what is read is checked before
                it is used.
closing.py      How a connection ends that is cut: its client hears why.
connections.py  Connections: how many there may be, how long a silent one is kept, what is said to
                one that is cut.
meters.py       What serving counts, as Prometheus text beside the broker's own metrics.
sending.py      Stored bytes to a socket without a copy in Python: one `sendfile` per range of a
                read plan.
waiting.py      Waiting for others: long polls that end when the server drains, and changes that
                nobody breaks off.
"""
