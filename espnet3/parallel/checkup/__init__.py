"""Checks of `espnet3 doctor`; none of them raises."""
