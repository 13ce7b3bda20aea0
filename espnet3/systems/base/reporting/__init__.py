"""The parts of the report: each module reads one kind of fact, or draws one kind of picture."""
