"""Liftbridge's API over gRPC: a second door to what the HTTP API does.

    client ─ HTTP/2 ─► multiplexed.py ─► call.py ─► server.py ─► streams.py, ... ─► door.py ─► endpoints of HTTP
                       frames            messages   which call   what it means      a request in this process

activity.py     events of `__activity`, as Liftbridge has them
backward.py     Subscribe with `reverse`
call.py         one call: the messages that come and go, its status
calls.py        the table of calls: each with the operations of HTTP that it is made of, and so its permissions
cursors.py      SetCursor, FetchCursor
group_offsets.py  how far a group is: what Subscribe begins, and the cursors of a group
groups.py       JoinConsumerGroup, LeaveConsumerGroup, FetchConsumerGroupAssignments, ReportConsumerGroupCoordinator
door.py         a request to the HTTP API from within, for whoever called
frames.py       limits of a connection, its frames before h2 has them
health.py       gRPC's health
messages.py     gRPC's framing of messages
metadata.py     FetchMetadata, FetchPartitionMetadata
multiplexed.py  connections: HTTP/2 by h2, flow control, limits
outgoing.py     records as messages of Subscribe (compiled: _outgoing.pxi)
publish.py      Publish, PublishAsync
reading.py      what Subscribe reads, and sends
records.py      published records as runs, columns and acks (compiled: _records.pyx)
reflection.py   gRPC's reflection: the calls and messages that there are
server.py       what the runtime starts and stops
shares.py       what consumers of groups have been told to read
statuses.py     gRPC's codes, and which one an error has
streams.py      CreateStream, DeleteStream, PauseStream, SetStreamReadonly
subscribe.py    Subscribe
to_subject.py   PublishToSubject

Imported where `liftbridge.listen` is set, and needs h2 (the extra `liftbridge`).
"""
