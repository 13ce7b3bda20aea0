"""Models of ESPnet2, through the package `espnet`: decoded and trained by ESPnet3."""
