"""liftlog on real input: the flights that left New York in 2013, from a data file to Spark windows and back.

flights.py           the data set as messages: subject, JSON payload, in time order
publish_flights.py   plain nats-py publishes them; nothing in it knows of liftlog
delays.py            delay per airport and hour: by Spark, by pandas, and whether they agree
local.py             a liftlog of one's own in a folder, gone without a trace afterwards
quickstart.py        all of it in one go: `make quickstart`
worker_pool.py       four processes share the work of a stream, as a consumer group; one of them is killed
notebooks/           the same, step by step, with plots; a query that is killed and goes on, exactly once; and JSON of
                     sensors, as windows and as a table of now and of before
"""
