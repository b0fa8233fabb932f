"""The published contract between the tiers: what every package may import.

schema.py   the record schema, its pinned bytes, the end-of-stream marker
batch.py    one record batch as bytes: field table, encode, verify, decode
columns.py  a batch of which only some columns are sent, and its check
checked.py  the checks of messages, compiled where there was a compiler
crc_parts.py  the CRC of bytes, of those of their parts
encodable.py  what a log appends, before it has its place
compression.py  Arrow's buffer compression, undone within limits
errors.py   the error tree with its reason codes
conditions.py  which records a reader wants: by subject, key and time
stream.py   the settings of a stream: defaults, limits, what they need of each other
partitioning.py  which partition of a stream a message belongs to
payload_schema.py  the columns of JSON values, as a text that a stream keeps
answers.py  what brokers answer, as dataclasses
auth_answers.py  what they answer about who may do what
sink_answers.py  what they answer about sinks
group_answers.py  what they answer about consumer groups
group_polls.py  how long a poll of a member of a consumer group waits
placements.py  a cluster, who keeps what in it, and what came of an operator's command
http.py     header names and media types of the HTTP API
plain.py    JSON and text that somebody else wrote
plain_join.py  small messages become one batch, without Arrow
plain_rows.py  small batches composed without Arrow
nats_url.py  addresses of NATS servers, and how they are shown
misfit.py   what a validator refuses: where, what, and what must hold
validation.py  what a value must be, declared once: checked, and told as JSON Schema
gathered/   rows out of many stored messages, compiled
compiled.py  a compiled module, where it belongs to the sources beside it
proto/      what brokers say to each other, as protocol buffers
permissions.py  what a call needs: actions, each on a thing that has a name
principals.py  who calls: principals, tokens, and what a grant covers
environment.py  the environment of a client: where brokers and the NATS server are, files of TLS
token_files.py  files with a bearer token
tls_files.py  certificates, keys and CAs from files, and what is wrong with them
certificate_faults.py  what is wrong with a certificate that was shown, in one word
revocations.py  lists of revoked certificates, and what they say of one
legible.py  a record's cells as JSON that people read
"""
