"""Without the package espnet, or with a release that has an espnet3 of its own."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.errors import ConfigError, MissingExtraError, ResourceError
from espnet3.systems.espnet2 import package
from espnet3.systems.espnet2.inference import ESPnet2Inference


@pytest.fixture
def espnet_of(tmp_path, monkeypatch):
    """Return a function that makes a release of espnet look installed."""

    def install(version):
        info = tmp_path / f"espnet-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: espnet\nVersion: {version}\n")
        (tmp_path / "espnet2").mkdir()
        (tmp_path / "espnet2/__init__.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


@pytest.mark.skipif(importlib.util.find_spec("espnet2") is not None, reason="it is installed here")
def test_without_espnet_the_error_says_what_to_install():
    with pytest.raises(MissingExtraError, match="--no-deps -r constraints-espnet2"):
        package.task_class("asr")


@pytest.mark.parametrize("version", ["202512", "202611.post1"])
def test_a_release_with_an_espnet3_of_its_own_is_refused(espnet_of, version):
    espnet_of(version)
    with pytest.raises(ResourceError, match=r"espnet3 of its own.*pip uninstall espnet"):
        package.check_installed()


@pytest.mark.parametrize("version", ["202511", "202308.1", "0.10.6", "202509+local"])
def test_earlier_releases_fit(espnet_of, version):
    espnet_of(version)
    package.check_installed()
    assert package.installed_version() == version


def test_tasks_with_two_losses_in_turn_are_refused():
    with pytest.raises(ConfigError, match=r"two losses in turn.*one of asr"):
        package.task_of("gan_tts")


def test_tasks_that_are_only_trained_are_refused_by_inference():
    with pytest.raises(ConfigError, match=r"can be trained here, but not decoded.*takes asr"):
        ESPnet2Inference("diar", "a", "b")


def test_an_unknown_task_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"task is 'asrr'.*Did you mean 'asr'"):
        package.task_class("asrr")


def test_importing_our_part_imports_no_espnet2():
    modules = [path.stem for path in Path(package.__file__).parent.glob("[!_]*.py")]
    assert "task_calls" in modules
    code = f"from espnet3.systems.espnet2 import {', '.join(modules)}; import sys; "
    code += "sys.exit('espnet2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
