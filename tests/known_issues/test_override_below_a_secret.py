"""The error of an override below a plain value showed that value, also if it was a token."""

import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError


def test_does_not_show_the_secret(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("hub: {token: hf_abcdef, name: me}\n")
    with pytest.raises(ConfigError, match=r"Write: hub\.token=VALUE") as caught:
        load_config(file, ["hub.token.x=1"])
    assert "hf_abcdef" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"hub\.name is 'me'"):
        load_config(file, ["hub.name.x=1"])
