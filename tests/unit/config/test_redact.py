import pytest
from omegaconf import OmegaConf

from espnet3.config.load import load_config
from espnet3.config.redact import (
    REDACTED,
    is_secret,
    mask,
    redact,
    redact_command,
    scrub_text,
    secrets_in,
)

SECRET = "hf_3b1c7f"


@pytest.mark.parametrize(
    "name",
    [
        *("token", "TOKEN", "hf_token", "HF_TOKEN", "use_auth_token", "hfToken", "auth-token"),
        *("secret", "client_secret", "SECRET_NAME", "aws_secret_access_key", "secrets"),
        *("password", "PASSWORD", "db_password", "passwd", "DB_PASSWORD_2", "token_2"),
        *("api_key", "API_KEY", "apiKey", "wandb_api_key", "access_key", "private_key", "MY_KEY"),
        *("access_key_id", "hub.token", "hubs[0].token", "--hf-token", "--api-key"),
    ],
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("idx_key", "input_key", "ref_key", "hyp_key", "output_keys", "key", "keys", "sort_key"),
        *("tokenizer", "token_list", "n_tokens", "tokens", "token_type", "num_token", "detokenize"),
        *("blank_token", "pad_token", "eos_token", "unk_token", "lang_token", "pad_token_id"),
        *("token.path", "secretary", "monkey", "KEYS", "TOKENS_FILE", "", "0"),
    ],
)
def test_names_that_only_look_like_secrets(name):
    assert not is_secret(name)


def test_values_under_secret_keys_are_replaced_and_the_rest_is_a_plain_copy():
    values = {"a": [{"token": SECRET, "n": 1}], "password": 1234, "secrets": {"x": [1]}, "t": (1,)}
    copy = redact(OmegaConf.create({"values": values}))["values"]
    assert copy == redact(values)
    assert copy == {
        "a": [{"token": REDACTED, "n": 1}], "password": REDACTED, "secrets": REDACTED, "t": [1],
    }  # fmt: skip
    assert values["a"] == [{"token": SECRET, "n": 1}]


@pytest.mark.parametrize("value", [None, True, False, "", "???"])
def test_what_holds_no_secret_is_kept(value):
    assert redact({"use_auth_token": value}) == {"use_auth_token": value}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export HF_TOKEN=abc", "export HF_TOKEN=<redacted>"),
        ("A=1 HF_TOKEN='a b' run", "A=1 HF_TOKEN=<redacted> run"),
        ('A_KEY="c \\" d" B_KEY=e\\ f run', "A_KEY=<redacted> B_KEY=<redacted> run"),
        ("env=HF_TOKEN=abc run", "env=HF_TOKEN=<redacted> run"),
        ("login -v --token abc", "login -v --token <redacted>"),
        ("--password --stage 6", "--password --stage 6"),
        ("export X_KEY=it's\nls", "export X_KEY=<redacted>\nls"),
        ('export PRIVATE_KEY="---\nabc\n---"\nls', "export PRIVATE_KEY=<redacted>\nls"),
        ("hf auth login --token abc --quiet", "hf auth login --token <redacted> --quiet"),
        ("curl --password=abc x", "curl --password=<redacted> x"),
        ("git clone https://me:abc@host/x", "git clone https://me:<redacted>@host/x"),
        ('{"token": "abc"}', '{"token": <redacted>'),
        ("a=b idx_key=utt_id n_tokens=3 x", "a=b idx_key=utt_id n_tokens=3 x"),
        ("module load cuda; cd ${HOME}", "module load cuda; cd ${HOME}"),
    ],
)  # fmt: skip
def test_what_a_string_assigns_to_a_secret_name_is_replaced(text, shown):
    assert redact({"prologue": [text]}) == {"prologue": [shown]}


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:HF_TOKEN}",
        "${ oc.env : X_KEY }",
        "${oc.env:HF_TOKEN,a}b'}",
        "Bearer ${oc.env:MY_SECRET,'x'}",
        "${oc.decode:${oc.env:DB_PASSWORD}}",
    ],
)
def test_what_is_interpolated_from_a_secret_variable_is_replaced(text):
    assert redact({"a": text}) == {"a": REDACTED}


def test_other_variables_are_kept():
    assert redact({"a": "${oc.env:HOME}/${oc.env:KEYS,b}"}) == {
        "a": "${oc.env:HOME}/${oc.env:KEYS,b}"
    }


def test_a_resolved_secret_is_found_wherever_it_went(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("X_PASSWORD", "abcd")
    path = tmp_path / "a.yaml"
    path.write_text(
        "hub: ${oc.env:HF_TOKEN}\nheader: Bearer ${hub}\nshort: ${oc.env:X_PASSWORD}\n"
        "word: abcdef\napi_key: '0123456789'\nurl: x?key=${api_key}\n"
    )
    shown = redact(load_config(path).resolved())
    assert shown == {
        "hub": REDACTED,
        "header": f"Bearer {REDACTED}",
        "short": REDACTED,
        "word": "abcdef",
        "api_key": REDACTED,
        "url": f"x?key={REDACTED}",
    }


def test_a_secret_that_another_key_repeats_is_replaced_there_too():
    values = {"token": "0123456789", "url": "https://x?k=0123456789&b", "other": "012345678"}
    assert redact(values) == {
        "token": REDACTED,
        "url": f"https://x?k={REDACTED}&b",
        "other": "012345678",
    }


def test_a_short_secret_does_not_mangle_other_values():
    values = {"password": "test", "name": "test-clean"}
    assert redact(values) == {"password": REDACTED, "name": "test-clean"}


def test_the_result_can_be_loaded_as_a_config():
    values = {
        "a": "${x:'HF_TOKEN=abc'}",
        "b": r"export HF_TOKEN=abc A=\${HOME}",
        "c": "${n} ${oc.env:HF_TOKEN}",
        "n": 3,
    }
    shown = OmegaConf.create(redact(OmegaConf.create(values)))
    assert shown.a == REDACTED
    assert shown.b == f"export HF_TOKEN={REDACTED} A=${{HOME}}"
    assert shown.c == f"3 {REDACTED}"


def test_redacting_twice_changes_nothing():
    once = redact({"token": SECRET, "a": f"export HF_TOKEN={SECRET}; --token {SECRET}"})
    assert redact(once) == once


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--token", "abc", "x"], ["--token", REDACTED, "x"]),
        (["--hf-token=abc"], [f"--hf-token={REDACTED}"]),
        (["hub.token=abc", "a.idx_key=b"], [f"hub.token={REDACTED}", "a.idx_key=b"]),
        (["hub={token: abc}"], [f"hub={{token: {REDACTED}"]),
        (["HF_TOKEN=a b"], [f"HF_TOKEN={REDACTED}"]),
        (["--use_auth_token", "--stage", "6"], ["--use_auth_token", "--stage", "6"]),
        (["x=[export A_KEY=abc]"], [f"x=[export A_KEY={REDACTED}"]),
        ([], []),
    ],
)
def test_secrets_of_a_command_are_replaced(argv, shown):
    assert redact_command(argv) == shown


def test_a_secret_of_the_environment_is_found_in_a_command(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert redact_command(["run.py", f"url=x?{SECRET}"]) == ["run.py", f"url=x?{REDACTED}"]


# Names and words that only begin or end like a secret

TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3h"


@pytest.mark.parametrize(
    "name",
    [
        *("frames_per_token", "penalty_per_token", "word_token", "start_of_text_token"),
        *("FRAMES_PER_TOKEN", "PAD_TOKEN", "decoder_start_token", "image_token", "seconds_token"),
    ],
)
def test_a_word_is_no_secret_because_it_ends_in_token(name):
    assert not is_secret(name)
    assert redact({name: "a"}) == {name: "a"}


@pytest.mark.parametrize(
    "name", ["access_token", "api_token", "github_token", "ci.HUB_TOKEN", "refreshToken", "X_TOKEN"]
)
def test_tokens_of_a_service_are_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        *("exp/hf_conformer1/model.pt", "org/hf_whisperlarge", "hf_whisperlargev3turbo"),
        f"exp/{TOKEN}/model.pt", f"org/{TOKEN}", f"{TOKEN}.pt",
        "sk-SK_commonvoice_17_0_2024_train_and_valid", "data/sk-SK_commonvoice_17_0_2024_validated",
        "Translate. token: A, then stop", "the password = x of the puzzle", "Bearer of good news",
    ],
)  # fmt: skip
def test_paths_names_and_prompts_are_shown(text):
    assert redact({"a": text}) == {"a": text}
    assert scrub_text(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"401 for {TOKEN}!", "401 for <redacted>!"),
        ("ghp_" + "a1B2" * 9, "<redacted>"),
        ("sk-proj-" + "aB3dE5gH7j" * 4, "<redacted>"),
        ("login(token='abc')", "login(token=<redacted>"),
        ("login(token=self.token)", "login(token=self.token)"),
        ('    password = "hunter2"\n', "    password = <redacted>\n"),
        ("{'Authorization': 'Bearer abc12345678901'}", "{'Authorization': 'Bearer <redacted>'}"),
        ("Authorization: Bearer abc", "Authorization: Bearer <redacted>"),
        ("https://u:p@h/x https://h/x:1@2", "https://u:<redacted>@h/x https://h/x:1@2"),
        ("token: a1b2c3d4e5f6a7b8c9d0 is wrong", "token: <redacted> is wrong"),
    ],
)  # fmt: skip
def test_secrets_in_free_text_are_replaced(text, shown):
    assert scrub_text(text) == shown
    assert scrub_text(shown) == shown


def test_known_values_in_free_text_are_replaced(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct horse")
    monkeypatch.setenv("SORT_KEY", "/")
    text = "KeyError: 'correct horse' in /tmp, 0123456789"
    assert scrub_text(text) == "KeyError: '<redacted>' in /tmp, 0123456789"
    known = secrets_in({"hub": [{"api_key": "0123456789"}], "beam": 5})
    assert scrub_text(text, known) == "KeyError: '<redacted>' in /tmp, <redacted>"


def test_a_mask_keeps_what_differs_apart_and_shows_no_secret():
    def flat(secret):
        return {
            "hub.token": secret, "header": f"Bearer {secret}", "secrets.db.user": secret,
            "run": f"export X_KEY={secret}; ls", "api_token.0": secret, "frames_per_token": 4,
        }  # fmt: skip

    one, two = mask(flat("abcdefgh1234")), mask(flat("abcdefgh1235"))
    assert "abcdefgh" not in str(one)
    assert [key for key in one if one[key] == two[key]] == ["frames_per_token"]
    assert one["frames_per_token"] == 4


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "part", ["a.b-", "token='", 'token="\\', "{token: a ", "token: ", "sk-", "a://"]
)
def test_a_long_text_takes_no_square_of_its_length(part):
    scrub_text("token " + part * 10_000)
