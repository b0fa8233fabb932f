"""One broker's partitions: from the applied catalog to roles, logs and acks. Clocks and threads are handed in.

    the applied catalog ─► replicas.py ─► placed.py, one for each replica ─┬─► folders.py, the log on the disk
                                          in turns (serial_work.py)        ├─► partitions/, led and appended to
                                                                           ├─► the link, to its followers or leader
                                                                           ├─► capturing.py, messages from NATS
                                                                           └─► leader_effects.py ─► the catalog

wiring.py       Things that a replica needs of others: the catalog, a session, followers, the capture of messages.
replicas.py     All replicas of this broker: what the catalog says goes to each, and step-outs are gathered.
placed.py       One replica under the catalog: leader, follower or resting; its step-outs.
serial_work.py  One thing at a time for each replica, on the threads of a pool.
folders.py      The folders of placed partitions: opened, made, moved aside, removed.
log_ends.py     So far each log went, at the least: what ends below was put back from a copy.
partitions/     The partitions: appended to, synced, watched; acks.
capturing.py    The capture of its messages while it leads.
mending.py      What it cannot read any more comes from other replicas.
asks.py         What is asked of the catalog until that shows it.
isr_changes.py  Changes of in-sync replicas, and the answer to each.
leader_effects.py  What a leader's core wants done by the catalog and its followers.
role_lines.py   One line of the log for the roles of many.

streams.py      Serves the partitions that are led here, and names the leaders of the others.
chores.py       What the background does for each of them.
offsets.py      Consumer offsets: read anew by whoever begins to lead their stream.
own_streams.py  When the broker's own streams are made, and on how many brokers; own_settings.py  how.
sinks/          Exactly-once sinks: stages beside their partitions, the coordinator, what it asks other brokers.
"""
