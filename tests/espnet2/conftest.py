"""Tiny models of ESPnet2 for the tests of this folder, which only `make test-espnet2` runs."""

import importlib.util
import warnings

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("espnet2") else ["*"]


@pytest.fixture(scope="session", autouse=True)
def _imported_once():
    """Import ESPnet2 in this process, for all tests: it takes half a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import espnet2.bin.asr_inference
        import espnet2.tasks.lm  # noqa: F401


@pytest.fixture(scope="session")
def models(tmp_path_factory, _imported_once):
    """Folders with `config.yaml` and `model.pth`, as ESPnet2 writes them, by name."""
    from tests.helpers.espnet2_models import write_asr, write_language_model

    folder = tmp_path_factory.mktemp("espnet2") / "a 'b' corpus/asr1/exp"
    made = {
        name: write_asr(folder / name, **keys)
        for name, keys in {
            "e_branchformer": {"encoder": "e_branchformer"},
            # Ends soon, so that the least length matters.
            "short": {"encoder": "conformer", "end_bias": 12.0, "blank_bias": 14.0},
            "rnn": {"encoder": "conformer", "decoder": "rnn"},
            "ctc": {"encoder": "conformer", "decoder": None},
        }.items()
    }
    for kind in ("transformer", "seq_rnn"):
        made[kind] = write_language_model(folder / kind, kind)
    return made
