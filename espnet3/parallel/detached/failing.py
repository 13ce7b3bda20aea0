"""What an error of one worker means for the run: stop it for all, or leave it to the others."""

import getpass
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from espnet3.errors import EspnetError, FileSystemError, RunFolderError
from espnet3.parallel.faults import EarlyDeaths
from espnet3.parallel.folder_run import write_failures
from espnet3.parallel.tasks import Failure, failure_record
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest
from espnet3.shards.reachable import is_of_node
from espnet3.shards.records import RecordPaths, StopMark, write_stop

logger = logging.getLogger(__name__)


def note_failures(root: Path, manifest: Manifest, failures: Sequence[Failure]) -> None:
    """Write what failed to `failed.jsonl`, as a driver does."""
    if not failures:
        return  # what is there is another worker's, who stopped the run as well
    with suppress(OSError):  # on a full disk, the error that is raised matters more
        records = [failure_record(failure, root) for failure in failures]
        write_failures(manifest.layout(root), records)


def stop_for(error: EspnetError, root: Path, lease: Lease) -> bool:
    """Stop the run for all workers, unless the error is, or may be, about this node only.

    Returns:
        Whether the run is stopped.
    """
    if is_of_node(error, root):
        logger.error("The worker on %s leaves, others may go on", lease.owner.host)
        return False
    may_be_of_node = isinstance(error, EarlyDeaths | RunFolderError)
    if may_be_of_node and (others := _others_elsewhere(lease)):
        logger.warning("Others go on, such as %s: this may be about this node only", others)
        return False
    by = f"{getpass.getuser()}, {lease.owner}"
    try:
        write_stop(RecordPaths(root), StopMark("failed", str(error), by))
    except OSError as trouble:
        logger.warning("The other workers could not be told: %s", trouble)
        return False
    return True


def _others_elsewhere(lease: Lease) -> str:
    """Return one who works on another node; of whom it cannot be told, there is somebody."""
    try:
        return next((str(o) for o in lease.others() if o.host != lease.owner.host), "")
    except FileSystemError as error:
        logger.warning("%s", error)
        return "whoever is there"
