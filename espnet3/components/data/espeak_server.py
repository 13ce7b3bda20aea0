"""A speech synthesis process: started by `espeak`, once in each worker, and run as a plain script.

espeak-ng seeds itself from the clock and remembers things from one utterance to the next. Here
each utterance is spoken by a child that was forked from the same freshly initialised parent, so it
depends on its request alone. The parent imports next to nothing, which makes a fork cheap.

A request is a line of JSON, the answer 4 bytes with a length, and as many bytes of 16-bit samples;
a negative length is that of an error message. The end of its input, also because the worker was
killed, ends it.
"""

import ctypes
import json
import os
import signal
import struct
import sys

# Instead of importing typing: whatever is imported makes each fork more expensive.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SYNCHRONOUS = 2
_UTF8 = 1
_PARAMETERS = {"speed": 1, "pitch": 3, "pitch_range": 4}
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)
_READY = struct.Struct("<i")


class _Speaker:
    """The library in one process."""

    def __init__(self, library: str, data: str) -> None:
        self._espeak = ctypes.CDLL(library)
        self._variants = frozenset(os.listdir(os.path.join(data, "voices", "!v")))
        # Asynchronous modes synthesise in a thread, which a fork would not have.
        self.sample_rate: int = self._espeak.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), 0)
        self._samples = bytearray()
        self._callback = _CALLBACK(self._receive)  # kept: the library holds only a pointer
        self._espeak.espeak_SetSynthCallback(self._callback)
        # The first call reads the folder of voices; the children need not.
        self._espeak.espeak_SetVoiceByName(b"en-us")

    def _receive(self, samples: "Any", n_samples: int, events: "Any") -> int:
        if samples and n_samples:
            self._samples += ctypes.string_at(samples, 2 * n_samples)
        return 0

    def say(self, request: "dict[str, Any]") -> bytes:
        """Return the samples of an utterance."""
        self._espeak.espeak_ng_SetRandSeed(ctypes.c_long(request["seed"]))
        voice = request["voice"]
        variant = voice.partition("+")[2]  # one that it does not have, it would leave out
        is_unknown = variant and variant not in self._variants
        if is_unknown or self._espeak.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        for name, number in _PARAMETERS.items():
            self._espeak.espeak_SetParameter(number, request[name], 0)
        text = request["text"].encode() + b"\0"
        if self._espeak.espeak_Synth(text, len(text), 0, 0, 0, _UTF8, None, None) != 0:
            raise ValueError(f"espeak-ng cannot synthesise {request['text']!r}")
        self._espeak.espeak_Synchronize()
        return bytes(self._samples)


def _answer(speaker: _Speaker, line: bytes) -> None:
    """Write the answer to a request; what goes wrong is an answer too."""
    try:
        data, sign = speaker.say(json.loads(line)), 1
    except Exception as error:
        data, sign = str(error).encode(), -1
    _write(_READY.pack(sign * len(data)) + data)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def main(library: str, data: str) -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: no traceback beside the worker's
    speaker = _Speaker(library, data)
    _write(_READY.pack(speaker.sample_rate))
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            _answer(speaker, line)
            # Not sys.exit(): cleaning up is left to the parent, whose pipes these are.
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status != 0:  # it crashed before it wrote: an answer is written at the very end
            message = f"espeak-ng crashed (status {status}) at {line!r}".encode()
            _write(_READY.pack(-len(message)) + message)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
