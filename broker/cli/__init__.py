"""The command line, `liftlog`. Modules import what they need when a command runs, so that help is quick.

start.py        the command: the app, or what is missing for it
main.py         the app, its global options, errors to exit codes (exits.py)
arguments.py    the parameters of a function as options and arguments
options.py      options that several commands share; values with units
lazy.py         the table of all commands; a command is imported when it runs
private_files.py  files that only their owner can read
output.py       tables for people, JSON for programs, notes on stderr

commands/       the commands that talk to a broker or look into its files
local/          `liftlog up` and `down`: a broker and a NATS server in one folder
doctor/         `liftlog doctor`: is everything here as a broker needs it?

For people: docs/reference/cli.md.
"""
