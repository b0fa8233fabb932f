"""HTTP: the pull socket for records and the admin API.

http/       connections, bodies and the aiohttp application
contract/   endpoints as a table, shapes, errors; the OpenAPI document is made from it
payload/    records in requests and answers: Arrow streams and JSON lines
endpoints/  the endpoints, a module for each part of the API
liftbridge/ Liftbridge's API over gRPC, a second door to the endpoints
threads.py  pools of threads, of drivers as well
"""
