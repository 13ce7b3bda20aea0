"""Start the processes of a training: checks, job scripts, submission."""
