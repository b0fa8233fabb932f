"""A history: what clients of a log saw. Somebody who knows nothing of the log's insides judges it.

    record.py   operations of clients, as JSON lines in the form that Jepsen's checker of Kafka reads
    ops.py      reads such a file, and refuses what cannot be judged
    judge.py    the anomalies, in the words of that checker
    users.py    publishers over NATS and readers over HTTP that record what they do
    samples/    histories with one anomaly each; expected.json says which

`python -m tests.history FILE` judges a file: exit 0 valid, 1 invalid, 2 it cannot be judged.
"""
