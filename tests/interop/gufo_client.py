"""What a program with gufo_liftbridge does, against a broker of this project: test_clients.py runs it.

Not of this package: the client may be installed beside another interpreter.
"""

# mypy: ignore-errors
import asyncio
import sys

from gufo.liftbridge.client import LiftbridgeClient
from gufo.liftbridge.types import AckPolicy, StartPosition

COUNT = 50


async def main(address: str, name: str) -> None:
    async with LiftbridgeClient([address]) as client:
        await client.create_stream(name, subject=f"{name}.subject", partitions=2, wait_for_stream=True)
        metadata = await client.get_metadata(name)
        assert [len(stream.partitions) for stream in metadata.metadata] == [2], metadata
        for i in range(COUNT):
            await client.publish(
                b"%d" % i, stream=name, partition=0, key=b"k", headers={"h": b"x"}, ack_policy=AckPolicy.ALL
            )
        seen = []
        async for message in client.subscribe(name, partition=0, start_position=StartPosition.EARLIEST):
            seen.append((message.offset, message.value, message.key, message.headers["h"]))
            if len(seen) == COUNT:
                break
        assert seen == [(i, b"%d" % i, b"k", b"x") for i in range(COUNT)], seen
        await client.set_cursor(name, 0, f"{name}-cursor", 7)
        assert await client.get_cursor(name, 0, f"{name}-cursor") == 8, "it stores the next one"
        partition = await client.get_partition_metadata(name, 0)
        assert (partition.high_watermark, partition.newest_offset) == (COUNT - 1, COUNT - 1), partition
        await client.delete_stream(name)
    print("OK", COUNT)


asyncio.run(main(*sys.argv[1:3]))
