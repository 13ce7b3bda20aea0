"""Detached runs: workers take shards from the run folder, without a driver."""
