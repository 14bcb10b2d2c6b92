"""The server: a log for other processes, over Arrow Flight and HTTP.

Importing this package is cheap; each module brings its own weight when it is imported.
"""
