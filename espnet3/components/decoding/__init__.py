"""Turn the output of a recogniser into token sequences: greedy, beam and joint search."""
