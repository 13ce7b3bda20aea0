"""How long ranks have been silent."""

from espnet3.trainer.ranks.rank_link import SilenceMeter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def listen(meter: SilenceMeter, clock: Clock, seconds: float, beats: dict[int, bytes]) -> None:
    clock.now += seconds
    meter.update(beats)


def test_counts_the_time_without_a_new_beat():
    clock = Clock()
    meter = SilenceMeter(2.0, clock)
    for beat in range(5):
        listen(meter, clock, 1.0, {1: b"7", 2: str(beat).encode()})
    assert meter.longest() == (1, 4.0)


def test_a_new_beat_ends_the_silence():
    clock = Clock()
    meter = SilenceMeter(2.0, clock)
    for beat in (b"1", b"1", b"1", b"2"):
        listen(meter, clock, 1.0, {1: beat})
    assert meter.longest() == (1, 0.0)


def test_time_in_which_the_listener_slept_does_not_count():
    clock = Clock()
    meter = SilenceMeter(2.0, clock)
    listen(meter, clock, 1.0, {1: b"1"})
    listen(meter, clock, 3600.0, {1: b"1"})
    assert meter.longest() == (1, 2.0)


def test_a_rank_that_has_left_is_forgotten():
    clock = Clock()
    meter = SilenceMeter(2.0, clock)
    for beats in ({1: b"1", 2: b"1"}, {1: b"1", 2: b"1"}, {2: b"2"}):
        listen(meter, clock, 1.0, beats)
    assert meter.longest() == (2, 0.0)


def test_nobody_to_listen_to():
    assert SilenceMeter(2.0).longest() == (0, 0.0)
