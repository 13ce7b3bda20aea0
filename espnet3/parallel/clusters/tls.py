"""TLS of one run for Dask: its certificate is trusted only by its driver and workers."""

import shlex
import weakref
from pathlib import Path
from typing import Any

from distributed.security import Security

from espnet3.parallel.clusters.certificates import Certificates


class RunSecurity(Security):
    """TLS with a certificate that exists only for this run, in a folder that nodes can see.

    Making one touches no file: `write` does, `remove` undoes it.

    Args:
        base: where the folder of the certificates will be, or the certificates.
        name: of that folder; without one, a unique name.
    """

    def __init__(self, base: Path | Certificates, name: str | None = None) -> None:
        files = base if isinstance(base, Certificates) else Certificates(base, name)
        self.certificates, self.folder = files, files.folder
        certificate, key = str(files.certificate), str(files.key)
        # As in Security.temporary(): holders of the run's one key belong to the run.
        super().__init__(  # type: ignore[no-untyped-call]
            require_encryption=True,
            tls_ca_file=certificate,
            **{f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")},
            **{f"tls_{role}_key": key for role in ("client", "scheduler", "worker")},
        )

    def write(self) -> None:
        """Make the files, unless that was done; see `Certificates`."""
        self.certificates.write()

    def remove(self) -> None:
        """Remove what `write` made; nothing if there is nothing."""
        self.certificates.remove()

    def get_tls_config_for_role(self, role: str) -> dict[str, str | None]:
        """Return the files of a role; for workers as words of a shell, which is where they go.

        In the driver only dask-jobqueue asks for a worker's files, and pastes them into the
        command of the job script as they are.
        """
        files: dict[str, str | None] = super().get_tls_config_for_role(role)  # type: ignore[no-untyped-call]
        if role != "worker":
            return files
        return {key: value and shlex.quote(value) for key, value in files.items()}


def removing_certificates(cluster_class: Any) -> Any:
    """Return a cluster class whose certificates are there while it is open, and no longer."""

    class Cluster(cluster_class):
        _remove_certificates: Any = None

        def __init__(self, **kwargs: Any) -> None:
            security = kwargs.get("security")
            if isinstance(security, RunSecurity):
                # Also at the end of the program, if the cluster is not closed.
                self._remove_certificates = weakref.finalize(self, security.remove)
                # After the finalizer: a Ctrl-C during the write must not leave the key behind.
                security.write()
            try:
                super().__init__(**kwargs)
            except BaseException:
                self._forget()
                raise

        async def _close(self) -> None:
            try:
                await super()._close()
            finally:
                self._forget()

        def _forget(self) -> None:
            if self._remove_certificates is not None:
                self._remove_certificates()

    Cluster.__name__ = cluster_class.__name__  # workers and messages are named after it
    return Cluster
