"""The real drivers of replicas in the simulator: those of `broker/node`, `broker/link` and `broker/node/partitions` run
here unchanged, over the disk, the clocks, the network, the catalog and the checker of `tests.sim`.

    fibers.py     a thread that goes on only when it is told to: what waits for the catalog, or is at an fsync
    running.py    executors, the loop, the pool of fsyncs and waits, stepped by the schedule of a seed
    wire.py       streams between brokers: bytes of the real codec, in order, late, held up, cut; the rest is the link's
    node.py       a broker: the real `Replicas` and what they are handed
    seen.py       one replica, as clients and the checker see it; givers.py  who could give it what it cannot read
    rewriting.py  passes of compaction and joins beside its roles
    changing.py   an operator who changes streams, and what must hold; http.py  whom he asks
    nats.py       a NATS server, and connections to it that are lost; delivered.py  what it has sent, and must be stored
    intake.py     the real intake of each broker; loop.py  an asyncio loop that is stepped
    sinks.py      the real sinks of each broker; published.py  drivers that write batches, and what must be published
    offsets.py    consumers that commit offsets, and what must hold of these

Each piece of work is begun at a time that luck chooses. It is interrupted where it waits, before and after an fsync of
the pool, where threads of streams look into a log, where turns make or remove a folder, and where turns and stops
close or recover a log. In one of four seeds little else goes wrong than what closes logs (`faults.CLOSES`), in another
one files are damaged (`faults.ROTS`). In two of eight streams are paused, altered, given more partitions, deleted and
made anew; in half of these brokers capture them from NATS. In three of sixteen others drivers write through sinks, and
consumers commit offsets. In two of thirty-two brokers join and leave. Not here yet: bulk transfers, the rest of HTTP.
"""
