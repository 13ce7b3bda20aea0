"""Speech recognition."""
