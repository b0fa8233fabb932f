"""`liftlog up` and `down`: a broker and a NATS server in one folder.

datafolder.py   the folder of one `up`: who runs there, and on which addresses
down.py         `liftlog down`: stops what `up` started
nats_server.py  the embedded NATS server: its binary, its configuration, its greeting
processes.py    processes, recognised without doubt before they are signalled
readiness.py    waits until what was started answers
reviving.py     a cluster in the foreground: brokers started again, and a line of health
supervise.py    the foreground of `up`: shows logs, stops in order
up.py           `liftlog up`: starts a NATS server and a broker
"""
