"""The names of the files of a packed model."""

META = "meta.yaml"
WEIGHTS = "weights.safetensors"
TRAINING = "conf/training.yaml"
INFERENCE = "conf/inference.yaml"
TOKENIZER = "tokenizer"
FILES = "files"
"""Folder of what the decoder reads, such as a language model."""
METRICS = "metrics.json"
CARD = "README.md"
FORMAT_VERSION = 1
