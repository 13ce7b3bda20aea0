"""ESPnet3: write a speech experiment once, run it anywhere."""

__version__ = "0.1.0"
