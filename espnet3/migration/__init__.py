"""Turns recipes of ESPnet2 into recipes of ESPnet3; no shell is ever run."""
