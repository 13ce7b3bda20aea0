"""TLS certificates of one run, trusted only by its driver and workers."""

import os
import shlex
import shutil
import socket
import uuid
import weakref
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from distributed.security import Security

from espnet3.errors import ResourceError
from espnet3.io.atomic import folder_trouble
from espnet3.shards.lease import start_time

_PREFIX = ".espnet3-tls"
_CERTIFICATE, _KEY = "certificate.pem", "key.pem"
_DAYS = 365


class RunSecurity(Security):
    """TLS with a certificate that exists only for this run, in a folder that nodes can see.

    Making one touches no file: `write` does, `remove` undoes it.

    Args:
        base: where the folder of the certificates will be.
        name: of that folder; without one, a unique name.
    """

    def __init__(self, base: Path, name: str | None = None) -> None:
        self.folder = base / (name or _new_name())
        certificate, key = str(self.folder / _CERTIFICATE), str(self.folder / _KEY)
        # As in Security.temporary(): holders of the run's one key belong to the run.
        super().__init__(  # type: ignore[no-untyped-call]
            require_encryption=True,
            tls_ca_file=certificate,
            **{f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")},
            **{f"tls_{role}_key": key for role in ("client", "scheduler", "worker")},
        )

    def get_tls_config_for_role(self, role: str) -> dict[str, str | None]:
        """Return the files of a role; for workers as words of a shell, which is where they go.

        In the driver only dask-jobqueue asks for a worker's files, and pastes them into the
        command of the job script as they are.
        """
        files: dict[str, str | None] = super().get_tls_config_for_role(role)  # type: ignore[no-untyped-call]
        if role != "worker":
            return files
        return {key: value and shlex.quote(value) for key, value in files.items()}

    def write(self) -> None:
        """Make the certificate and its key, in files that only this user can read.

        Raises:
            ResourceError: if they cannot be written.
        """
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            _sweep(self.folder.parent)
            # It must not exist: a folder that another user made would be theirs to read.
            self.folder.mkdir(mode=0o700)
            certificate, key = _make_certificate()
            _write_private(self.folder / _KEY, key)
            _write_private(self.folder / _CERTIFICATE, certificate)
        except OSError as error:
            self.remove()
            raise ResourceError(
                f"The certificates of the run cannot be written in {self.folder.parent}: "
                f"{folder_trouble(error, self.folder.parent)}.",
                fix="Make room there, or name another "
                "folder that driver and nodes share: parallel.options.shared_temp_directory: "
                "/path/to/folder",
            ) from error

    def remove(self) -> None:
        """Remove what `write` made; nothing if there is nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)


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


def _make_certificate() -> tuple[bytes, bytes]:
    """Return a self-signed certificate and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "espnet3-run")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of nodes may be slow
        .not_valid_after(now + timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_private(path: Path, data: bytes) -> None:
    # With its mode from the start: at no moment can others open the key.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)  # a full quota may be reported only now


def _new_name() -> str:
    return f"{_PREFIX}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _sweep(base: Path) -> None:
    """Remove certificates of drivers of this machine that were killed."""
    # Of this machine alone: the pid of a driver elsewhere means nothing here.
    for folder in base.glob(f"{_PREFIX}-{socket.gethostname()}-*"):
        pid = folder.name.split("-")[-2]
        if pid.isdigit() and start_time(int(pid)) is None:
            with suppress(OSError):
                shutil.rmtree(folder)
