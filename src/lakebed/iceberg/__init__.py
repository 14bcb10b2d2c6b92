"""Iceberg tables of topics and derived tables, and the object store that holds their files."""
