"""How the processes of a training are started: checks, job scripts, submission."""
