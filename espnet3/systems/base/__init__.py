"""Code shared by all systems."""
