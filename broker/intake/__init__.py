"""From NATS to appended batches, and back to acks. All of it on the intake thread.

answers.py    answers to publishers, made, sent and counted
beginnings.py  captures that are asked for by other threads, begun together
captures.py   partitions that are captured one by one, as they are led here
driver.py     the thread: one NATS connection, and the subscriptions of each stream
flush.py      from builders to appended batches, and from durable batches to answers
flushed.py    a flushed batch, from its append to its last answer
inbox.py      the two blocks of memory that a connection is read into
jetstream.py  whether a JetStream stream captures the same subject
nats_seam.py  how our parser gets behind nats-py
pacing.py     loopback connections are not paced
rights.py     what the NATS server does not let the broker's user do
unbelieved.py  of a server whose certificate is not believed the audit is told
uncommitted.py  what is durable here and waits for followers, and its bound
websocket.py  NATS over WebSocket
"""
