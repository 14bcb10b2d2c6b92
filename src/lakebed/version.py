"""The version of the package, kept apart so that the build can read it without importing it."""

__version__ = "0.6.0"
