"""The soak: users and an operator on running brokers at once, at random; then what they were told is held against what
is stored. `python -m tests.soak`; how to run and read it: docs/explain/soak.md."""
