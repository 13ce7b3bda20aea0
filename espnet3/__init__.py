"""ESPnet3: write a speech experiment once, run it anywhere."""

__version__ = "0.2.0"
