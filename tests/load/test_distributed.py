"""Ranks as they are in life: processes joined by gloo over the loopback."""

from __future__ import annotations

import json
import pathlib
from collections import Counter

import pytest
import torch
import torch.multiprocessing
from load_cases import NUM, open_numbers
from torch.utils.data import DataLoader

SHUFFLES = [False, "chunk", "full"]
#: Ranks of the largest world.
MOST = 4


def run_rank(rank: int, file: str, out: str) -> None:
    """Be a rank of each world that is large enough, one after the other: a process takes seconds to start."""
    torch.set_num_threads(1)
    for world_size in range(rank + 1, MOST + 1):
        join_world(rank, world_size, file, out)


def join_world(rank: int, world_size: int, file: str, out: str) -> None:
    where = f"file://{out}/join{world_size}"
    torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=world_size)
    try:
        ds = open_numbers(file)
        found = {}
        for shuffle in SHUFFLES:
            for drop_last in (False, True):
                loader = ds.loader(4, shuffle, threads=2, drop_last=drop_last)
                stream = ds.batches(4, shuffle, drop_last=drop_last)
                doors = {"loader": loader, "batches": DataLoader(stream, batch_size=None)}
                if shuffle == "full" and not drop_last and world_size == 2:
                    # A spawned worker knows nothing of torch.distributed: every rank delivered everything.
                    doors["spawned"] = DataLoader(
                        stream, batch_size=None, num_workers=1, multiprocessing_context="spawn"
                    )
                    stream.set_epoch(0)
                for door, batches in doors.items():
                    lengths, seen = [], []
                    for batch in batches:
                        total = torch.tensor(len(batch["number"]))
                        torch.distributed.all_reduce(total)  # hangs where ranks have unequal batches
                        assert int(total) == world_size * len(batch["number"])
                        lengths.append(len(batch["number"]))
                        seen += batch["number"].tolist()
                    found[f"{shuffle} {drop_last} {door}"] = {"lengths": lengths, "seen": seen}
                loader.close()
        torch.distributed.barrier()
        pathlib.Path(out, f"{rank}of{world_size}.json").write_text(json.dumps(found))
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(file: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(run_rank, (file, str(out)), nprocs=MOST)
    return out


@pytest.mark.parametrize("world_size", range(1, MOST + 1))
def test_gloo_ranks_see_each_sample_as_promised(results: pathlib.Path, world_size: int) -> None:
    ranks = [json.loads((results / f"{rank}of{world_size}.json").read_text()) for rank in range(world_size)]
    for case in ranks[0]:
        drop_last = case.split()[1] == "True"
        assert len({tuple(rank[case]["lengths"]) for rank in ranks}) == 1, case
        counts = Counter(number for rank in ranks for number in rank[case]["seen"])
        if drop_last:
            assert len(counts) == sum(counts.values()) == NUM - NUM % (4 * world_size), case
        else:
            assert set(counts) == set(range(NUM)), case
            assert sum(counts.values()) - NUM < world_size, case  # padding to equal batches
            assert max(counts.values()) <= 2, case
