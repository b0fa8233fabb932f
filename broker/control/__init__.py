"""This broker's part in the cluster's catalog, on a thread of its own: Raft, sessions, the controller, changes.

    identity = identity_from(config)  # None: this broker is alone; open the data folder with identity.cluster_id
    plane = Plane(identity, disk=disk, folder=data_dir, halt=halt)   # imports pysyncobj: import it late
    plane.start()                     # forms, joins or comes back; the catalog is caught up when it returns
    found = replicas.open_found()     # reads plane.service.catalog; Replicas(host, plane.process)
    plane.register(Addresses(http=..., grpc=...), sound=found.sound, behind=found.behind, ...)
    replicas.start()                  # Host(service=plane.service, has_session=plane.has_session, ...)
    ...
    plane.hand_over()                 # a clean stop: leaderships go to others; then drain, close replicas
    plane.stop()

others.py      What a broker has of others, as the rest of it sees that.
plane.py       The metadata plane of one broker of several, put together.
local.py       That of a broker that is alone: the catalog is a file of its own.
catalog_store.py  That file: of lines, rewritten as one at start and when it has grown.
orphans.py     Folders of streams: how one goes, and those that the catalog does not name, found at the start.
thread.py      The thread that owns the Raft node.
service.py     The catalog for other threads: `execute`, `read`, `subscribe`. Implements `wiring.CatalogService`.
heart.py       This broker's session: heartbeats, and whether it has one.
duties.py      Duties of the controller: drives `metadata/controller.py` and `metadata/voting.py`.
signs.py       Signs of life of members of consumer groups, on their way to the controller.
leaderless.py  How long partitions are without a leader, for /metrics.
forming.py     The way into the group: the first voters form it, others join it, members come back.
membership.py  The folder's word on that: `raft.json`.
registering.py The registration of this process, and whether its folder is the one that the catalog means.
rescue.py      Rescues the folders when a majority of the voters is lost for good. No broker runs meanwhile.
status.py      The cluster as one broker knows it, for people.
identity.py    The identity of this broker, and the brokers that it knows: from its configuration.
clock.py       The clocks.
auth_modes.py  What each broker does with callers, reported and looked at.
used_producers.py  Which producers are used: their names are kept.
operating/     Changes of streams, and what an operator does by hand.
"""
