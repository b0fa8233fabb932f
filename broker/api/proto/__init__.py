"""Messages of other protocols, as protocol buffers.

grpc_health.proto      of gRPC's health checks
grpc_health_pb2.py     made of it by protoc; `python -m tests.unit.api.test_proto` makes all anew
grpc_reflection.proto  of gRPC's reflection: what a server says of its calls
grpc_reflection_pb2.py  made of it
liftbridge.proto       of Liftbridge's API, as its clients send them
liftbridge_pb2.py      made of it
replica.proto          between brokers
replica_pb2.py         made of it
"""
