"""What a provider holds in confidence is not for others: not in files, not in what is told."""

import functools
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from espnet3.cli.main import main
from espnet3.errors import EspnetError, RunFolderError
from espnet3.io.atomic import PRIVATE, open_atomic, write_bytes, write_json
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.parallel.detached.description import (
    load_runner,
    load_spec,
    load_trusted,
    read_own,
)
from espnet3.parallel.detached.submit import submit_workers
from espnet3.parallel.tasks import Failure, secrets_held
from espnet3.shards.records import RecordPaths
from tests.helpers.run_folders import describe

# None of them has the shape of a token of a service: only their names give them away.
HELD, NESTED, BUILT, EXPORTED = (
    "corvus-held-17",
    "corvus-nested-17",
    "corvus-built-17",
    "corvus-env",
)
SECRETS = (HELD, NESTED, BUILT, EXPORTED)


def load_code(root, **trust):
    return load_spec(root, **trust), load_runner(root, **trust)


class Provider:
    """Has a token as attribute, and one in its config."""

    def __init__(self, hub_token: str, password: str, fails: bool = False) -> None:
        self.hub_token = hub_token
        self.config = {"hub": {"password": password, "user": "anna"}}
        self.fails = fails

    def build_env_local(self) -> dict[str, Any]:
        told = f"{self.hub_token}, {self.config['hub']['password']}, {os.environ['X_SECRET']}"
        if self.fails:
            raise RuntimeError(f"401 for {told}")
        return {"told": told}

    def build_worker_setup_fn(self) -> Any:
        return self.build_env_local


class Asks(BaseRunner):
    @staticmethod
    def forward(idx: int, told: str) -> int:
        if idx == 3:
            raise RuntimeError(f"refused: {told}, https://me:{'pass'}-17@host/x")
        return idx


@pytest.fixture(autouse=True)
def _exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X_SECRET", EXPORTED)


def run(folder: Path, n_workers: int, **kwargs: Any) -> str:
    with use_parallel({"env": "local", "n_workers": n_workers}):
        try:
            provider = Provider(HELD, NESTED, kwargs.pop("fails", False))
            Asks(provider, output_dir=folder, **kwargs)(range(6))
        except EspnetError as error:
            causes = [str(error), str(error.__cause__), str(error.__context__)]
            return "\n".join(causes[: 2 if error.__suppress_context__ else 3])
    return ""


def written_in(folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "\n".join(f"{path}: {path.read_bytes().decode(errors='replace')}" for path in files)


def assert_clean(text: str) -> None:
    assert [secret for secret in (*SECRETS, "pass-17") if secret in text] == []


@pytest.mark.parametrize("n_workers", [1, 2])
@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_a_token_in_an_exception_is_not_written_or_told(
    tmp_path, capfd, caplog, n_workers, on_error
):
    raised = run(tmp_path, n_workers, on_error=on_error)
    for verb in (["failed"], ["failed", "--json"], ["explain"], ["status"]):
        main([*verb, str(tmp_path)])
    captured = capfd.readouterr()
    assert "refused: <redacted>, <redacted>, <redacted>" in captured.out
    assert "refused: <redacted>" in (tmp_path / "failed.jsonl").read_text()
    assert_clean(captured.out + captured.err + caplog.text + raised + written_in(tmp_path))


@pytest.mark.parametrize("n_workers", [1, 2])
def test_nor_is_one_with_which_the_provider_failed(tmp_path, capfd, caplog, n_workers):
    raised = run(tmp_path, n_workers, fails=True)
    assert "401 for <redacted>" in raised
    captured = capfd.readouterr()
    assert_clean(captured.out + captured.err + caplog.text + raised + written_in(tmp_path))


def test_secrets_are_found_where_providers_keep_them():
    from omegaconf import OmegaConf

    class Client:
        def __init__(self, token: str) -> None:
            self.__dict__["_auth_token"] = token

    def closes_over(password: str) -> Any:
        return lambda: password

    held = [
        {"access_token": "corvus-1a"},
        [OmegaConf.create({"a": {"secret": "corvus-2a"}})],
        Client("corvus-3a"),
        functools.partial(print, password="corvus-4a"),
        closes_over("corvus-5a"),
        {"clients": {"one": (Client("corvus-6a"),)}},
    ]
    itself: dict[str, Any] = {}
    itself["itself"] = itself
    found = secrets_held(*held, itself, {"frames_per_token": "ten of them", "n": 5})
    assert found == {f"corvus-{number}a" for number in range(1, 7)}


def test_an_object_that_does_not_like_to_be_looked_at_does_no_harm():
    class Shy:
        __slots__ = ("token",)

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    assert secrets_held(Shy(), {"password": "corvus-1a"}) == {"corvus-1a"}


def test_errors_of_ours_are_told_without_secrets_as_well():
    failure = Failure.of(EspnetError(f"wrong key {HELD}"), 0, 0, 0, secrets=[HELD])
    assert failure.error == "wrong key <redacted>"


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_code_and_settings_are_for_their_owner_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        describe(tmp_path, env="local", n_workers=1)
        (tmp_path / "detached" / "code.pkl").chmod(0o644)  # as the version before left it
        describe(tmp_path, env="local", n_workers=1)
        submit_workers([tmp_path], load_trusted(tmp_path).config(), 0)
    finally:
        os.umask(before)
    found = modes(tmp_path / "detached")
    private = ("code.pkl", "run.json", "parallel-local.json")
    assert {found[name] for name in private} == {0o600}
    load_code(tmp_path)


def test_there_is_no_moment_in_which_others_can_open_a_private_file(tmp_path, monkeypatch):
    made: list[int] = []
    real = os.fchmod

    def fchmod(descriptor: int, mode: int) -> None:
        made.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", fchmod)
    before = os.umask(0)
    try:
        with open_atomic(tmp_path / "a", permissions=PRIVATE) as file:
            assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600]
            file.write("x")
        write_bytes(tmp_path / "b", b"x", permissions=PRIVATE)
        write_json(tmp_path / "c", {}, permissions=PRIVATE)
    finally:
        os.umask(before)
    assert made == [0o600] * 3
    assert set(modes(tmp_path).values()) == {0o600}


def told_to_nobody(root: Path) -> str:
    """Return what one who has no rights is told of a run."""
    told: list[str] = []

    def as_nobody() -> None:
        # Of this thread alone.
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.syscall(117, -1, 65534, -1) == 0  # setresuid
        try:
            load_trusted(root, trust="root")
        except RunFolderError as error:
            told.append(str(error))

    thread = threading.Thread(target=as_nobody)
    thread.start()
    thread.join()
    return told[0]


def open_to_all(folder: Path) -> None:
    """Open the folders above, which pytest keeps for its user."""
    for path in (folder, *folder.parents):
        if path.stat().st_mode & stat.S_ISVTX:  # the one for all users
            return
        path.chmod(0o755)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_colleague_is_told_how_the_owner_can_share_a_run(tmp_path):
    describe(tmp_path, env="local", n_workers=1)
    open_to_all(tmp_path)
    told = told_to_nobody(tmp_path)
    assert f"chmod -R g+rX {tmp_path}/detached" in told
    assert "can only be read by root" in told


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_colleague_is_told_which_folder_above_is_closed(tmp_path):
    root = tmp_path / "closed" / "deeper" / "run"
    describe(root, env="local", n_workers=1)
    open_to_all(tmp_path)
    (tmp_path / "closed").chmod(0o700)
    told = told_to_nobody(root)
    assert f"chmod g+rX {tmp_path}/closed" in told
    assert "root types" in told


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_code_in_a_folder_of_somebody_else_is_not_run(tmp_path):
    describe(tmp_path, env="local", n_workers=1)
    os.chown(tmp_path / "detached", 1, -1)
    with pytest.raises(RunFolderError, match="belongs to daemon"):
        load_code(tmp_path)
    assert load_code(tmp_path, trust="daemon")


@pytest.mark.parametrize("name", ["code", "run"])
def test_a_link_to_another_file_of_ones_own_is_not_taken_for_the_code(tmp_path, name):
    describe(tmp_path / "one", env="local", n_workers=1)
    path = getattr(RecordPaths(tmp_path / "one"), name)
    path.rename(tmp_path / "mine")
    path.symlink_to(tmp_path / "mine")
    with pytest.raises(RunFolderError, match="is a link"):
        load_code(tmp_path / "one")


def test_a_pipe_in_place_of_the_code_keeps_nobody_waiting(tmp_path):
    describe(tmp_path, env="local", n_workers=1)
    path = RecordPaths(tmp_path).code
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(RunFolderError, match="is no file"):
        read_own(path, None)


def test_code_of_another_submission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("espnet3.parallel.detached.description._LOOK_SECONDS", 0.0)
    for name in ("one", "two"):
        describe(tmp_path / name, env="local", n_workers=1)
    values = json.loads(RecordPaths(tmp_path / "one").run.read_text())
    assert values["code_sha256"]
    RecordPaths(tmp_path / "one").code.write_bytes(
        RecordPaths(tmp_path / "two").code.read_bytes() + b"."
    )
    with pytest.raises(RunFolderError, match="is not the code with which the run was submitted"):
        load_code(tmp_path / "one")


def test_folders_of_the_version_before_are_loaded(tmp_path):
    describe(tmp_path, env="local", n_workers=1)
    path = RecordPaths(tmp_path).run
    values = json.loads(path.read_text())
    for name in ("code_sha256", "output_dir"):
        del values[name]
    path.write_text(json.dumps(values))
    path.chmod(0o644)
    RecordPaths(tmp_path).code.chmod(0o644)
    assert load_code(tmp_path)[1].output_dir == tmp_path
