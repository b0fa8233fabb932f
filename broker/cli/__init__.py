"""The command line, `liftlog`. Modules import what they need when a command runs, so that help is quick.

start.py        the command: the app, or what is missing for it
main.py         the app, its global options, errors to exit codes (exits.py)
options.py      options that several commands share; values with units
output.py       tables for people, JSON for programs, notes on stderr
up.py, down.py  an embedded NATS server and a broker in one folder, and:
    datafolder.py   the folder, the record of what runs there
    processes.py    starting, proof of ownership, stopping
    nats_server.py  the binary and its configuration
    readiness.py    waiting until something answers
    supervise.py    the foreground: logs, stopping in order
broker.py       one broker, for production
stream.py, consumer.py, sink.py   what is there, and changing it; settings.py: the options for it,
    changes.py      what is changed of a stream that runs
publish.py, tail.py      records in, records out; records.py: as text
log.py                   files of a log: verify, repair; dump.py and export.py show and copy what is in them
doctor.py                whether all is as a broker needs it; checks.py: what a check says, and of
    checks_machine.py   this machine
    checks_folder.py    the data folder
    checks_network.py   others

For people: docs/cli.md.
"""
