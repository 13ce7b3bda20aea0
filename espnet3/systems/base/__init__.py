"""What all systems share."""
