"""The Kafka protocol: a served log for unmodified Kafka clients. Needs the extra `kafka`."""
