"""Speech from espeak-ng: an utterance depends on its arguments alone."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from espnet3.components.data.errors import DataError
from espnet3.components.data.espeak import ACCENTS, SAMPLE_RATE, speak
from espnet3.errors import MissingExtraError
from tests.helpers import clean_process
from tests.helpers.waiting import wait_for_end

pytest.importorskip("espeakng_loader")


def test_the_same_arguments_give_the_same_samples_whatever_came_before():
    first = speak("one two three", "en-us+f2", seed=1)
    for voice in ("en-us+m3", "en-gb-scotland+Andy", "en-029+klatt"):
        speak("four five six seven", voice, seed=2)
    assert np.array_equal(speak("one two three", "en-us+f2", seed=1), first)


def test_another_process_gives_the_same_samples():
    here = speak("nine oh nine", "en-us+m1", seed=5)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(speak, ("nine oh nine", "en-us+m1"), {"seed": 5})
    assert np.array_equal(here, there)


def speak_in_forks(texts):
    """Return what this process speaks and then, at the same time, two that it forks."""
    own = [speak(text) for text in texts]
    fork = multiprocessing.get_context("fork")
    queues = [fork.SimpleQueue() for _ in range(2)]
    forks = [fork.Process(target=speak_into, args=(queue, texts)) for queue in queues]
    for process in forks:
        process.start()
    spoken = [[queue.get() for _ in texts] for queue in queues]
    for process in forks:
        process.join()
    return own, *spoken


def speak_into(queue, texts):
    for text in texts:
        queue.put(speak(text))


def test_a_fork_has_a_synthesiser_of_its_own():
    texts = ["one", "two", "three", "four"] * 3
    expected = [speak(text) for text in texts]
    for spoken in clean_process.call(speak_in_forks, texts):
        assert all(map(np.array_equal, spoken, expected))


def test_each_argument_changes_what_is_heard():
    base = speak("one two", "en-us+f2")
    others = [
        speak("one two", "en-us+f2", **change)
        for change in ({"speed": 120}, {"pitch": 80}, {"pitch_range": 0}, {"seed": 7})
    ] + [speak("one two", f"{accent}+f1") for accent in ACCENTS]
    assert all(len(other) != len(base) or not np.array_equal(other, base) for other in others)
    assert len(others[0]) > 1.2 * len(base)


def test_samples_are_speech_of_full_scale_one_at_the_rate_that_was_asked_for():
    speech = speak("seven", "en-us+f1", sample_rate=8000)
    assert speech.dtype == np.float32
    assert 0.05 < np.abs(speech).max() <= 1.1
    assert len(speech) == pytest.approx(len(speak("seven", "en-us+f1")) * 8000 / SAMPLE_RATE, abs=1)


@pytest.mark.parametrize("voice", ["xx-none", "en-us+nobody"])
def test_an_unknown_voice_is_named_and_the_next_utterance_is_spoken(voice):
    with pytest.raises(DataError, match=f"no voice '{voice.replace('+', '.')}'.*en-gb-scotland"):
        speak("one", voice)
    assert len(speak("one"))


def test_it_is_fast():
    def per_second(seeds):
        begin = time.monotonic()
        for seed in seeds:
            speak("one two three", "en-us+f2", seed=seed)
        return len(seeds) / (time.monotonic() - begin)

    speak("one")
    # The best of a few: others may use the machine as well. It is 300/s on a quiet core.
    assert max(per_second(range(at, at + 10)) for at in range(0, 50, 10)) > 25


def test_a_synthesiser_that_was_killed_is_an_error_once():
    speak("one")
    for pid in _servers(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(DataError, match="Run the stage again"):
        speak("one")
    assert len(speak("one"))


def test_no_process_is_left_when_the_worker_is_killed():
    code = (
        "import time\nfrom espnet3.components.data.espeak import speak\n"
        "speak('one')\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    servers = _servers(worker.pid)
    assert len(servers) == 1
    worker.kill()
    worker.wait()
    worker.stdout.close()
    wait_for_end(servers)


def test_without_the_package_the_error_has_the_line_that_installs(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    from espnet3.components.data.espeak import check_espeak

    with pytest.raises(MissingExtraError, match=r"pip install .*\[demo\]"):
        check_espeak()


def _servers(parent: int) -> list[int]:
    """Return the synthesisers that a process started."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and _parent(int(name)) == parent:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if b"espeak_server" in file.read():
                    found.append(int(name))
    return found


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return -1
