"""Benchmarks: what is quoted, and how it was measured.

    python -m benchmarks [names…] [--tiny] [--repeats N] [--data DIR]     run, then write docs/benchmarks.md
    python -m benchmarks report                                          only write docs/benchmarks.md
    python -m benchmarks --list                                          what there is

    harness.py     turns, ratios, machine, JSON lines        payload.py    deterministic messages
    peers.py       JetStream, the bare socket drain          publisher.py  raw-socket publisher processes
    ours.py        a broker and its streams                  window.py     raw-socket publisher that counts acks
    ours_cluster.py  three brokers                           jetstream_cluster.py  three nats-servers
    kafka.py, nats_go.py  where an installation exists       wire.py       NATS lines over a blocking socket
    report.py      table and plots                           results/      one JSON line per case, kept in git

and one file per workload: intake, fetch, produce, acked, spark_read, spark_write, memory, idle, restart, staged,
rewrite, integrity, commands, replicated, table, payloads, selected, projected, noisy, encrypted,
secured, liftbridge.

R1  Always paired: in each repeat every side has its turn, the order rotates, and a ratio is made
    within one repeat. Figures of two runs are never compared.
R2  A figure without its line in results/ is not quoted.
R3  Everything is counted at the end of the chain (offsets in the log, messages in the stream, acks at
    the publisher), and what is missing is in the line as `lost`.
R4  The load is made by sockets and prepared bytes, so that the publisher is not what is measured.
R5  Every benchmark also runs tiny (a second or so) in tests/benchmarks, so none rots.
"""
