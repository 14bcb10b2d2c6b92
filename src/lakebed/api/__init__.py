"""The log as its users see it, whether it is in a folder or served by another process."""
