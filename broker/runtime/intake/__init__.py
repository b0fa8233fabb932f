"""From NATS to appended batches, and back to acks. All of it on the intake thread.

driver.py     The intake thread: keeps a NATS connection and one subscription per stream (per
              partition with suffixes).
flush.py      From builders to appended batches, and from durable batches to acks. Lives on the
              intake thread's loop.
inbox.py      What a connection is read into: two blocks of memory, in turns.
jetstream.py  Whether a JetStream stream captures the same subject: both would answer the publisher,
              who sees one of the two.
nats_seam.py  How the intake parser gets behind nats-py.
pacing.py     Over loopback nothing is paced.
"""
