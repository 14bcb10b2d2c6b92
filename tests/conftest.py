"""Fixtures for every package of tests."""

pytest_plugins = ["tests.s3"]
