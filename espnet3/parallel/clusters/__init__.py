"""Backends: how each kind of cluster is started. `table` knows them all."""
