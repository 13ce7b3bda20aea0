"""The certificate of one run and its key, as files that only its driver and workers read.

Needs no Dask: jobs are submitted with the paths before it is imported.
"""

import os
import shutil
import socket
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from espnet3.errors import ResourceError
from espnet3.io.atomic import folder_trouble
from espnet3.shards.lease import start_time

_PREFIX = ".espnet3-tls"
_DAYS = 365


class Certificates:
    """The certificate and the key of a run, in a folder that nodes can see.

    Making one touches no file: `write` does, `remove` undoes it.

    Args:
        base: where the folder will be.
        name: of that folder; without one, a unique name.
    """

    def __init__(self, base: Path, name: str | None = None) -> None:
        self.folder = base / (name or _new_name())
        self.certificate, self.key = self.folder / "certificate.pem", self.folder / "key.pem"
        self._is_written = False

    def write(self) -> None:
        """Make the files, unless that was done.

        Raises:
            ResourceError: if they cannot be written.
        """
        if self._is_written:
            return
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            _sweep(self.folder.parent)
            # It must not exist: a folder that another user made would be theirs to read.
            self.folder.mkdir(mode=0o700)
            certificate, key = _make_certificate()
            _write_private(self.key, key)
            _write_private(self.certificate, certificate)
        except OSError as error:
            self.remove()
            raise ResourceError(
                f"The certificates of the run cannot be written in {self.folder.parent}: "
                f"{folder_trouble(error, self.folder.parent)}.",
                fix="Make room there, or name another "
                "folder that driver and nodes share: parallel.options.shared_temp_directory: "
                "/path/to/folder",
            ) from error
        self._is_written = True

    def remove(self) -> None:
        """Remove what `write` made; nothing if there is nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._is_written = False


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
