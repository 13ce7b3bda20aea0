"""From a `Recognition` to the fields that `infer` keeps of an utterance."""

from typing import Any


def output_fn(data: Any, model_output: Any, idx: Any) -> Any:
    """Return the fields of an utterance, or of each in a batch.

    They are `hyp` and `score`, `ref` where the sample has a text, and what the model was asked
    for: `nbest` with `n_best` above 1, and `words` with `word_times`, both as a line of JSON.
    `output_keys` of the config chooses among them.

    Args:
        data: The sample, or a list of samples.
        model_output: The `Recognition` of it, or a list of them.
        idx: Its position in the dataset, or a list of positions.
    """
    if isinstance(idx, list):
        return [output_fn(*item) for item in zip(data, model_output, idx, strict=True)]
    fields = {"hyp": model_output.text, "score": f"{model_output.score:.4f}"}
    if "text" in data:
        fields["ref"] = data["text"]
    if len(model_output.n_best) > 1:
        fields["nbest"] = model_output.n_best_json()
    if model_output.words is not None:
        fields["words"] = model_output.words_json()
    return fields
