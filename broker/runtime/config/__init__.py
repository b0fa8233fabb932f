"""A broker's configuration: one table of settings, and how it is read.

annotated.py      The table of settings as a TOML file in which every key has its default, meaning,
                  limit and unit.
configuration.py  A broker's configuration, read from a file, the environment and the command line.
nats_options.py   The `[nats]` settings as nats-py's connect options. Kept apart: it handles the
                  secrets.
settings.py       Every key of a broker's configuration, once: default, limit, unit, meaning.
"""
