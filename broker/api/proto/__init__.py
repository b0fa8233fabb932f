"""Messages between brokers, as protocol buffers.

replica.proto   the source: service liftlog.v1.Replica
replica_pb2.py  made of it by protoc; `python -m tests.unit.api.test_proto` makes it anew
"""
