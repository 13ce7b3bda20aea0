"""A bare repository had the commit "HEAD", and inside of a git hook another one was described."""

import subprocess

from espnet3.systems.base.stages import git_state


def git(folder, *arguments):
    settings = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *settings, *arguments], check=True)


def test_a_bare_repository_without_commits_has_no_state(tmp_path):
    git(tmp_path, "init", "-q", "--bare")
    assert git_state(tmp_path) is None


def test_a_hook_of_another_repository_does_not_matter(tmp_path, monkeypatch):
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        git(folder, "init", "-q")
        git(folder, "commit", "-q", "--allow-empty", "-m", folder.name)
    expected = git_state(own)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert expected is not None
    assert git_state(own) == expected
