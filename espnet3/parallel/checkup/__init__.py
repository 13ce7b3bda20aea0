"""Checks before an hour in the queue, for `espnet3 doctor`; none of them raises."""
