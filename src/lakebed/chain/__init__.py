"""The chain: a log's entries as numbered objects of a store, each created once.

Sans I/O: every procedure is a generator that yields calls (`chain/calls.py`) and is sent their
results, so that the simulator of the tests and the engine run the same code. `DESIGN.md` has the
protocol and why it holds.
"""
