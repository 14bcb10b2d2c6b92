"""Lakebed on the command line."""
