"""What `measure` computes: any function of the fields that `infer` wrote."""

from collections import Counter
from pathlib import Path
from typing import Any


def accuracy(data: dict[str, list[str]], test_name: str, inference_dir: Path) -> dict[str, Any]:
    """Return the share of clips whose class was found, in percent, also for each class."""
    pairs = list(zip(data["name"], data["found"], strict=True))
    n_all = Counter(name for name, _ in pairs)
    n_right = Counter(name for name, found in pairs if name == found)
    by_class = {f"accuracy_{name}": 100 * n_right[name] / n for name, n in sorted(n_all.items())}
    total = 100 * sum(n_right.values()) / len(pairs)
    return {"accuracy": total, **by_class, "n_clips": len(pairs)}
