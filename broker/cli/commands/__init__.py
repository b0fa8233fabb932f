"""The commands that talk to a broker or look into its files, a module each.

auth.py      `liftlog auth …`: who may do what: tokens, grants
broker.py    `liftlog broker`: run one broker in the foreground
certs.py     `liftlog certs …`: a private CA, and certificates of it
cluster.py   `liftlog cluster …`: brokers, who keeps what, and moving it
consumer.py  `liftlog consumer …`: who reads what, how far behind, and how to move it
group.py     `liftlog group …`: who reads what, how far behind, and moving it
dump.py      `liftlog log dump`: what is stored, as lines
export.py    `liftlog log export`: records as Parquet files
log.py       `liftlog log …`: verify, repair, dump and export the files of a log
producer.py  `liftlog producer …`: the names of idempotent producers
publish.py   `liftlog publish`: messages to a NATS subject, and their acks counted
records.py   records as text, for people or as JSON
rescue.py    `liftlog cluster rescue …`: the way on when a majority of the voters is lost for good
secret.py    `liftlog secret …`: the secret of a cluster, master keys
settings.py  the settings of a stream as options
sink.py      `liftlog sink …`: what each sink committed last; reset, adopt, delete
stream.py    `liftlog stream …`: create, list, describe, alter, pause, trim, delete
tail.py      `liftlog tail`: records of a stream on stdout
"""
