"""Providers for tests; importable, so that worker processes find them."""


class Provider:
    """Gives each worker the keyword arguments it was made with."""

    def __init__(self, **env):
        self.env = env

    def build_env_local(self):
        return dict(self.env)

    def build_worker_setup_fn(self):
        return self.build_env_local
