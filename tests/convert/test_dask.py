"""Conversion on a Dask cluster, through its client's executor: real worker processes on loopback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from convert_samples import RESIZE, SIZE, digest, make_pictures, small

pytest.importorskip("distributed", reason="Dask is not installed")

# A process of its own: Dask's event loops and warnings stay out of the other tests.
SCRIPT = """
import sys
from distributed import Client, LocalCluster
from h5cache import convert_dataset

if __name__ == "__main__":
    source, out, resize, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        with Client(cluster) as client:
            done = convert_dataset(
                source, out, resize=resize, size=size, executor=client.get_executor(), part_samples=16, progress=False
            )
    print(done.num_samples)
"""


def test_dask_cluster_gives_the_same_bytes_as_this_process(tmp_path: Path) -> None:
    make_pictures(tmp_path / "source", 60)
    alone = tmp_path / "alone.h5"
    small(tmp_path / "source", alone)
    script = tmp_path / "cluster.py"
    script.write_text(SCRIPT)
    out = tmp_path / "cluster.h5"
    command = [sys.executable, str(script), str(tmp_path / "source"), str(out), str(RESIZE), str(SIZE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "60"
    assert digest(out) == digest(alone)
