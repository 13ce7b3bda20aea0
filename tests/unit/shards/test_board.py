from espnet3.shards.board import Board
from espnet3.shards.lease import Lease


def test_workers_share_the_shards_and_see_when_all_are_done(run):
    with Lease(run.root, heartbeat=1000) as one, Lease(run.root, heartbeat=1000) as two:
        boards = [Board(run.root, run.manifest, lease) for lease in (one, two)]
        taken = [board.take() for board in boards * 2]
        assert sorted(taken) == list(range(run.n_shards))
        assert [board.take() for board in boards] == [None, None]
        for board, shard in zip(boards * 2, taken, strict=True):
            run.commit(shard)
            board.finished(shard)
        for board in boards:
            board.refresh()
            assert board.is_complete()
