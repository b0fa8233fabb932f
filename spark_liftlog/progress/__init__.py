"""How far a query is, and how far behind: told to brokers, to Prometheus, to people.

publishing.py    how far a query is, published as a liftlog consumer
claim.py         one source for one consumer name
query_lag.py     how far behind it is, from the progress that Spark keeps
lag_listener.py  the same for Prometheus and for notebooks
"""
