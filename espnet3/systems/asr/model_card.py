"""The README.md of a packed model: a card with the front matter of the Hugging Face Hub."""

from collections.abc import Mapping
from typing import Any

from espnet3.systems.asr.publication_config import PackConfig
from espnet3.systems.base.results_table import format_results


def model_card(
    name: str, settings: PackConfig, metrics: Mapping[str, Any] | None, facts: Mapping[str, Any]
) -> str:
    """Return the text of the card.

    Args:
        name: Of the model.
        settings: What the config says of it.
        metrics: The content of metrics.json, if there is one.
        facts: Lines of the table under "Model", by what they are about.
    """
    parts = [
        _front_matter(settings),
        f"# {name}",
        settings.description or "A speech recogniser, trained with ESPnet3.",
        _usage(name),
        _results(metrics),
        "## Data",
        settings.data or "Not stated by those who packed the model.",
        "## Model",
        _table(facts),
        f"## Licence\n\n{settings.license}",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _front_matter(settings: PackConfig) -> str:
    from omegaconf import OmegaConf

    values: dict[str, Any] = {
        "license": settings.license,
        "language": settings.languages,
        "library_name": "espnet3",
        "pipeline_tag": "automatic-speech-recognition",
        "tags": ["espnet3", "audio", "automatic-speech-recognition", *settings.tags],
        "datasets": list(settings.datasets),
    }
    filled = {key: value for key, value in values.items() if value}
    return f"---\n{OmegaConf.to_yaml(OmegaConf.create(filled))}---"


def _usage(name: str) -> str:
    return (
        "## How to use\n\n```python\n"
        "from espnet3.systems.asr.inference import Speech2Text\n\n"
        f'model = Speech2Text.from_packed("{name}")  # this folder, or its .tar.gz\n'
        'print(model("speech.wav").text)\n```'
    )


def _results(metrics: Mapping[str, Any] | None) -> str:
    if not metrics:
        return "## Results\n\nNot measured."
    # One level deeper than in a file of their own.
    lines = format_results(metrics).splitlines()
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines)


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f"| {key} | {value} |" for key, value in facts.items() if value not in (None, "")]
    return "\n".join(["| | |", "|---|---|", *rows])
