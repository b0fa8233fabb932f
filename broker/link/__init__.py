"""Replicas of several brokers over TCP: followers ask, leaders answer. `ReplicaLink` (link.py) is all of it.

    link = ReplicaLink(me=…, process=…, cluster_id=…, secret=…, service=catalog_service, report=…, sync_pool=…,
                       settings=config.replication)
    port = link.start(config.grpc.host, config.grpc.port)    before the registration: it names the port
    replicas = Replicas(Host(…, wiring=link, …), process)    each replica gets its two drivers from the link
    …
    replicas.stop()
    link.stop()

`report(at, leader_epoch)` tells the controller (`leader_reports.ReportArrived`) and must not wait.

link.py       Its port and its connections, and `Wiring` for replicas.
door.py       The port: accepts, speaks TLS, bounds what strangers take.
codec.py      Messages between replicas as bytes of the wire, and back.
framed.py     Frames over a connection, plain or TLS.
tls.py        Certificates on both sides, and why a handshake of TLS failed.
handshake.py  Both sides prove who they are: secret, cluster, name and registration.
directory.py  The brokers, and where they are.
server.py     The leader's side: a stream for each broker that follows.
answering.py  The leader's driver: questions of followers to the core, its answers with stored bytes to their streams.
ranges.py     What is told to a replica that is damaged: batches that it cannot read.
bulk.py       The leader's side of bulk: ranges of files to followers far behind, by sendfile.
outbox.py     The queue of what one stream has to say.
pace.py       How fast replicas that are not in sync may be filled.
connection.py The follower's side: a stream to each broker that leads.
bulk_reader.py  The follower's side of bulk.
following.py  The follower's driver: answers to the core, what it wants to the log.
"""
