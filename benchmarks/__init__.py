"""What ESPnet3 promises about speed and memory, measured against plain alternatives."""
