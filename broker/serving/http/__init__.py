"""Connections, bodies and the application: HTTP without a word of liftlog's API.

access.py       who asks, and whether it may: the gate before every handler
addresses.py    connections by the address that they come from
allowance.py    how many records a caller may cause, and all callers together
app.py          the application: endpoints, one middleware, a clean end
audit.py        who did what, and who was refused: a record for each act before it is answered
body.py         request bodies, bounded and checked
callers.py      how much one caller may have under way
closing.py      how a connection ends that is cut
connections.py  how many there may be, and how long a silent one is kept
gone.py         changes whose client is gone: they are not begun
new_names.py    how many names one caller makes
paces.py        what may be taken at once, and from then on evenly
json_text.py    the JSON of a body: counted, then parsed
jwts.py         bearer tokens that somebody else has signed
meters.py       what serving counts
peers.py        other brokers, asked for what this one does not know
origin.py       requests that a page of another site makes: they are refused
rights.py       what each caller may do, and whom a connection last knew
sending.py      stored bytes to a socket, by `sendfile`
tls.py          TLS, from the accept to the end of a handshake
trail.py        records on their way into `__audit`, whoever leads it
waiting.py      long polls, and changes that nobody breaks off
"""
