"""What one says to a house: a small grammar of commands, of 69 words."""

from random import Random

ROOMS = ("kitchen", "bedroom", "bathroom", "garage", "office", "hall", "garden", "cellar")
LIGHTS = ("light", "lamp")
DEVICES = (*LIGHTS, "heater", "fan", "radio", "television", "camera", "alarm")
OPENINGS = ("door", "window", "curtain", "gate")
MACHINES = ("kettle", "oven", "dishwasher")
TENS = ("ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
UNITS = ("five", "six", "seven", "eight", "nine")

# What stands in braces is replaced by one of its words, brackets are left out half of the time.
COMMANDS = (
    "{turn|switch} {on|off} the {devices} [in the {rooms}]",
    "{turn|switch} off all [in the {rooms}]",
    "dim the {lights} in the {rooms} to {number} percent",
    "set the {heater|oven|temperature} to {number} degrees",
    "set the temperature in the {rooms} to {number} degrees",
    "{open|close|lock|unlock} the {openings} [in the {rooms}]",
    "play {music|the news} in the {rooms} [for {number} minutes]",
    "{start|stop} the {machines}",
    "start the {machines} at {units}",
    "{raise|lower} the volume [in the {rooms}] by {number} percent",
    "wake me at {units}",
    "set the alarm for {units}",
)
_LISTS = {
    "rooms": ROOMS,
    "lights": LIGHTS,
    "devices": DEVICES,
    "openings": OPENINGS,
    "machines": MACHINES,
    "units": UNITS,
}


def draw_command(random: Random) -> str:
    """Return a command."""
    text = _fill(random.choice(COMMANDS), random)
    return f"{text} please" if random.random() < 0.25 else text


def _fill(text: str, random: Random) -> str:
    words = []
    while text:
        before, bracket, rest = text.partition("[")
        words.append(before)
        inside, _, text = rest.partition("]")
        if bracket and random.random() < 0.5:
            words.append(inside)
    parts = "".join(words).split("{")
    filled = parts[0]
    for part in parts[1:]:
        name, _, rest = part.partition("}")
        filled += _choose(name, random) + rest
    return " ".join(filled.split())


def _choose(name: str, random: Random) -> str:
    if name == "number":
        tens = random.choice(TENS)
        is_exact = tens != "ten" and random.random() < 0.4
        return f"{tens} {random.choice(UNITS)}" if is_exact else tens
    return random.choice(_LISTS.get(name) or name.split("|"))
