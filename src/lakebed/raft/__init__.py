"""The replicated-log contract."""
