"""A cluster of several brokers, or of one.

    plane/ (the catalog) ─► replicas/, each in its role ─┬─► link/ ─► the other brokers
    control, what users change ─► plane/                 └─► streams, what is served here

broker.py       One broker, assembled.
others.py       What it has of others, as the rest of it sees that.
several.py      Of a cluster: Raft, the link, companions of partitions.
alone.py        Of a cluster of one: a file, nobody, folders beside the logs.
plane/          The metadata plane: the Raft node on a thread, sessions, the controller; forming and joining.
replicas/       The replicas of this broker, each led, following or resting, as the catalog says; their folders.
asks.py         What is asked of the catalog until that shows it.
wiring.py       Things that a replica needs of others: the catalog, a session, followers, the capture of messages.
codec.py        Messages between replicas as bytes of the wire, and back.
link/           Replicas of several brokers over TCP: followers ask, leaders answer.
streams.py      Serves the partitions that are led here, and names the leaders of the others.
control.py      Changes streams, by commands that the controller carries out.
auth_modes.py   What each broker does with callers, told and looked at.
own_streams.py  When the stream of consumer offsets is made, and on how many brokers; own_settings.py  how.
offsets.py      Consumer offsets: read anew by whoever begins to lead their stream.
sinks/          Exactly-once sinks: stages beside their partitions, the coordinator, what it asks other brokers.
operating/      An operator looks at a cluster, and changes it by hand.
"""
