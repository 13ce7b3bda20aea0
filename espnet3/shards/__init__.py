"""Plans of shards and the on-disk protocol that makes them survive anything.

Pure: it knows files and items, not Dask, torch or YAML. See `docs/how-it-works.md`.
"""
