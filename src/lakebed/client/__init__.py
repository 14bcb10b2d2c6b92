"""A served log, with the methods of an embedded one."""
