"""Error rates of speech recognition: words, characters and tokens."""
