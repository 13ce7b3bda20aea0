"""Compute the shards with failed items again; the rest of the line is as for `espnet3 resume`."""

from collections.abc import Sequence

from espnet3.cli.resume import parse, show
from espnet3.parallel.detached.folder_access import told_in_words
from espnet3.parallel.detached.resume import retry_runs
from espnet3.text import count


@told_in_words
def run_line(argv: Sequence[str]) -> int:
    """Set shards aside and submit workers.

    Raises:
        UsageError: the line is wrong.
    """
    request = parse(argv, "retry", __doc__ or "")
    retried = retry_runs(request.run_dirs, request.changes, **request.settings)
    if retried.n_shards:
        failed = count(retried.n_failed, "failed item")
        print(f"{failed} in {count(retried.n_shards, 'shard')}, which will be computed again.")
    elif retried.resumed is None:
        print("No item failed; nothing to do.")
    if retried.resumed is not None:
        show(retried.resumed)
    return 0
