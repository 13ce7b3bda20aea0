"""Runs that go on without their driver: workers take shards from the run folder."""
