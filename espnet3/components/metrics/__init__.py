"""Metrics: count what is wrong, tell how sure the count is, and show where it is wrong."""
