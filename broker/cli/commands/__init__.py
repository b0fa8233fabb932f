"""The commands that talk to a broker or look into its files, a module each.

broker.py    `liftlog broker`: one broker in the foreground, as a service manager runs it.
consumer.py  `liftlog consumer …`: who reads what, how far behind, and moving it.
dump.py      What is stored, as lines: a batch each, or a record each. Read from the files as they
             are, verified.
export.py    Records as Parquet files, in bounded memory, from a running broker or from the files of
             a log.
log.py       `liftlog log …`: look into the files of a log, verify, repair and export them. No
             broker is needed.
publish.py   `liftlog publish`: messages to a NATS subject, their acks counted.
records.py   Records as text: a line for people, or a JSON object per line in the form of the HTTP
             API.
settings.py  The settings of a stream as options of commands, by their declaration.
sink.py      `liftlog sink …`: exactly-once sinks: what each committed last, and what to do when its
             checkpoint changed.
stream.py    `liftlog stream …`: create, list, describe, alter, delete; pause, resume, read-only,
             trim, add-partitions.
tail.py      `liftlog tail`: records of a stream on stdout, as they are or as they come.
"""
