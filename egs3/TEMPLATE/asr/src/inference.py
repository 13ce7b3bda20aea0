"""From what the model returns to what is kept of an utterance.

A model that returns a text needs no such function: delete `output_fn` and `output_keys` in
conf/inference.yaml, and hyp.scp and ref.scp are written.
"""

from typing import Any


def output_fn(data: Any, model_output: Any, idx: Any) -> Any:
    """Return the fields of an utterance, or of each in a batch.

    Args:
        data: The sample as `Dataset` returns it, or a list of samples.
        model_output: What the model returned for it.
        idx: Its position in the dataset, or a list of positions.
    """
    if isinstance(idx, list):
        return [output_fn(*item) for item in zip(data, model_output, idx, strict=True)]
    return {
        "hyp": " ".join(model_output.keys),
        "ref": data["text"],
        "confidence": f"{model_output.confidence:.2f}",
        "shares": model_output.shares,
    }
