"""One bad item costs one item: it is listed with its traceback, and the others are done."""

import shutil

from espnet3.parallel import BaseRunner, set_parallel


class Texts:
    """A provider needs no base class, only these two methods."""

    def build_env_local(self):
        return {"texts": ["one", "two", None, "four"]}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Upper(BaseRunner):
    """Fails on what is not text."""

    @staticmethod
    def forward(idx, texts):
        return texts[idx].upper()


shutil.rmtree("demo-run/upper", ignore_errors=True)
set_parallel({"env": "local", "n_workers": 2})
path = Upper(Texts(), output_dir="demo-run/upper", on_error="skip")(range(4))
print(path.read_text().split(), "and see: espnet3 failed demo-run/upper")
