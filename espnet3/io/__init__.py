"""Files that others read: atomic writing, SCP and JSON Lines records, artifacts, file names."""
