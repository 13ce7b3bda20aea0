from espnet3.parallel.detached.worker import note_failures
from espnet3.parallel.tasks import Failure


def test_one_without_a_failed_item_does_not_remove_what_another_wrote(planned):
    note_failures(planned.root, planned.manifest, [Failure(3, "utt3", 0, "it is bad", "")])
    note_failures(planned.root, planned.manifest, [])
    assert "it is bad" in planned.layout.failed.read_text()
