"""Models that an engine can run."""
