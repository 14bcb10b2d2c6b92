"""Programs that look after the repository."""
