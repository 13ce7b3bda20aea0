#!/bin/bash
# Make the environment of `make test-espnet2`: ESPnet3, and beside it the package espnet.
# usage: install.sh FOLDER
set -euo pipefail
venv=$1
pip=("$venv/bin/python" -m pip install --quiet --no-compile)

"${PYTHON:-python3}" -m venv "$venv"
"${pip[@]}" --constraint constraints.txt --editable '.[dev]'
"${pip[@]}" --no-deps --requirement constraints-espnet2.txt

# torchaudio of the package index is built for CUDA, and cannot be imported beside a torch for CPUs;
# without its libraries it can, and all that ESPnet2 uses of it still works.
"$venv/bin/python" - <<'PYTHON'
import pathlib
import sys
import sysconfig
import zipfile

import torch

if torch.version.cuda is None:
    for library in pathlib.Path(sysconfig.get_paths()["purelib"], "torchaudio/lib").glob("*.so"):
        library.unlink()
# g2p_en downloads these two when it is imported; empty ones are as good for our tests.
for name in ("taggers/averaged_perceptron_tagger.zip", "taggers/averaged_perceptron_tagger_eng.zip",
             "corpora/cmudict.zip"):
    path = pathlib.Path(sys.prefix, "nltk_data", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    zipfile.ZipFile(path, "w").close()
PYTHON
"$venv/bin/python" -W ignore -c 'import espnet2.bin.asr_inference'
