"""Messages of other protocols, as protocol buffers.

liftbridge.proto   of Liftbridge's API, as its clients send them
liftbridge_pb2.py  made of it by protoc; `python -m tests.unit.api.test_proto` makes it anew
replica.proto      between brokers
replica_pb2.py     made of it
"""
