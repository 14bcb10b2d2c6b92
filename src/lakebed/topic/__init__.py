"""What a topic is made of: records, routing, memtables, consumer groups, retention."""
