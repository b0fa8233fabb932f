"""Stock clients of other projects against a broker of this one.

gufo_client.py   what a program with gufo_liftbridge does
go/              what one with go-liftbridge does
test_clients.py  runs them
"""
