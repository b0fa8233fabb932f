"""What python-liftbridge's own examples do: create a stream, publish, publish to a subject, subscribe.

Arguments: host and port of a broker, the name of the stream. Prints OK, or ends with an error.
"""

# mypy: ignore-errors
import sys
from datetime import timedelta
from itertools import islice

from python_liftbridge import ErrStreamExists, Lift, Message, Stream


def values(client, stream, count):
    """Of the first records; the first message says that the subscription has begun."""
    found = list(islice(client.subscribe(stream), count + 1))
    assert found[0].value == b"", found[0]
    return [message.value for message in found[1:]]


def main():
    address, name = sys.argv[1:]
    client = Lift(ip_address=address, timeout=30)
    client.create_stream(Stream(subject=f"{name}.subject", name=name))
    try:
        client.create_stream(Stream(subject=f"{name}.subject", name=name))
    except ErrStreamExists:
        pass
    else:
        raise AssertionError("it exists")
    for number in range(3):
        client.publish(Message(value=f"m{number}", stream=name, key="k").ack_policy_all())
    client.publish(Message(value="m3", stream=name).ack_policy_leader())
    client.publish_to_subject(Message(value="m4", subject=f"{name}.subject").ack_policy_all())
    assert values(client, Stream(f"{name}.subject", name).start_at_earliest_received(), 5) == [
        b"m0",
        b"m1",
        b"m2",
        b"m3",
        b"m4",
    ]
    assert values(client, Stream(f"{name}.subject", name).start_at_latest_received(), 1) == [b"m4"]
    assert values(client, Stream(f"{name}.subject", name).start_at_offset(2), 2) == [b"m2", b"m3"]
    assert values(client, Stream(f"{name}.subject", name).start_at_time_delta(timedelta(hours=30)), 1) == [b"m0"]
    assert name in {each.name for each in client.fetch_metadata().metadata}
    print("OK python-liftbridge")


main()
