"""What the methods of a log return: descriptions, reports and counters, as plain data."""
