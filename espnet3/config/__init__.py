"""Configuration: load files, check them against a model, fingerprint them, build what they name.

Import the modules themselves (`espnet3.config.load`, `.schema`, `.fingerprint`, `.instantiate`), so
that a worker that only compares fingerprints does not load OmegaConf and pydantic.
"""
