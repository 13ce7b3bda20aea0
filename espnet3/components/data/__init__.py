"""Datasets: where samples come from, and how those of an experiment are put together."""
