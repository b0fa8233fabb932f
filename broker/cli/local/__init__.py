"""`liftlog up` and `down`: a broker and a NATS server in one folder.

datafolder.py   DATA, the folder of one `up`: who runs there, on which addresses.
down.py         `liftlog down`: stops what `up` started in a folder, and only what is provably that.
nats_server.py  The embedded NATS server: where its binary is, how it is configured, whether it
                answers.
processes.py    Processes that `up` started, recognised without doubt before they are signalled.
readiness.py    Waiting until what was started answers, and saying why when it does not.
supervise.py    The foreground of `up`: shows what the processes write, and stops them in order.
up.py           `liftlog up`: an embedded NATS server and a broker, from nothing, in one folder.
"""
