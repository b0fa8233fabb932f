"""Several brokers: what runs only where there are others.

broker.py   One broker of several, assembled.
control.py  What changes streams, by commands that the controller carries out.
offsets.py  Consumer offsets: read anew by whoever begins to lead their stream.
own_streams.py  When the stream of consumer offsets is made, and on how many brokers.
sinks/      Exactly-once sinks: stages beside their partitions, the coordinator, what it asks other brokers.
streams.py  What is led here is served; of the rest, who leads it.
codec.py    Messages between replicas as bytes of the wire, and back.
folders.py  The folders of placed partitions: opened, made, moved aside, removed.
plane/      The metadata plane: the Raft node on a thread, sessions, the controller; forming and joining.
operating/  What an operator sees of a cluster, and does to it by hand.
placed.py   One replica under the catalog: leader, follower or resting; its step-outs.
replicas.py All replicas of this broker: what the catalog says goes to each, and step-outs are gathered.
serial_work.py  One thing at a time for each replica, on the threads of a pool.
wants.py    What one replica wants of the catalog and of its followers, asked once at a time.
link/       Replicas of several brokers over gRPC: who follows asks, who leads answers.
wiring.py   What a replica needs of others: the catalog, a session, followers, the capture of messages.
"""
