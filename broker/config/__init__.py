"""A broker's configuration: one table of settings, and how it is read.

auth.py           who may do what, as far as the settings say
certificates.py   the files of TLS that the settings name: read, checked, read again when they change
configuration.py  reads file, environment and command line
jwks.py           the keys of who issues JWTs: read or fetched, again and again
master_keys.py    the keys by which records are encrypted on disk: from a file or a command
nats_options.py   the `[nats]` settings as options of nats-py; it handles the secrets
settings.py       every key, once: default, limit, unit, meaning
table.py          the same, with dotted keys; the commented file
"""
