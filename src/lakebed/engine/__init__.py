"""The embedded log: puts WAL, state machine, memtables and segments together."""
