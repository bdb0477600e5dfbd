"""Compare ways to load pictures: samples/s warm and cold, bytes on disk, CPU seconds per 1,000 samples.

    python benchmarks/loading.py --images FOLDER --peers-python VENV/bin/python --json loading.json --plot loading.png

Two threads or workers for everyone, batches of 256, the same samples. Each contestant runs in a process of its own;
its files are read into the page cache from end to end, then a first epoch, not timed, compares samples with what was
stored and starts workers. Repetitions are interleaved, so that a slow moment of the machine hits all; the best counts.
Cold is one epoch after the kernel was asked to drop the store's pages, starting workers included; checksums were
checked before. Packages that are not installed are left out; `--peers-python` names an interpreter that has them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from contest import Array, Setting
from goals import Goal, check_goals
from opening import measure_gil, measure_opening
from peers import PEERS
from pictures import find_pictures, generate_pictures, load_picture
from run_one import CONTESTANTS, run
from small import SMALL_SOURCE

BATCH_SIZE = 256
#: A build of a store, its check and its epochs.
TIMEOUT_S = 900
#: The slowest, h5py with gzip, takes half a minute for an epoch.
MOST_S = 40.0
PEER_NAMES = {peer.name for peer in PEERS}

Results = dict[str, dict[str, Any]]


def write_sources(work: Path, images: Path | None, samples: int, size: int, small_samples: int) -> None:
    """Write the samples that everyone stores; photographs are repeated where there are too few."""
    photographs = find_pictures(images, samples) if images else []
    if photographs:
        distinct = np.stack([load_picture(path, size) for path in photographs])
    else:
        distinct = generate_pictures(min(samples, 256), size)
    source = work / "source"
    source.mkdir(parents=True)
    target = np.lib.format.open_memmap(source / "images.npy", "w+", np.uint8, (samples, 3, size, size))
    for sample in range(samples):
        target[sample] = distinct[sample % len(distinct)].transpose(2, 0, 1)
    target.flush()
    if photographs:
        (source / "photographs.txt").write_text("\n".join(str(path.resolve()) for path in photographs) + "\n")
    small = work / SMALL_SOURCE
    small.mkdir()
    np.save(small / "images.npy", _small_pictures(distinct, small_samples))


def _small_pictures(pictures: Array, count: int, size: int = 32) -> Array:
    """Cut pieces out of pictures scaled to 3/2 of the size, each at another place."""
    rng = np.random.default_rng(0)
    scaled = [cv2.resize(picture, (size * 3 // 2,) * 2, interpolation=cv2.INTER_AREA) for picture in pictures]
    places = rng.integers(0, size // 2 + 1, (count, 2)).tolist()
    pieces = np.empty((count, 3, size, size), np.uint8)
    for sample, (top, left) in enumerate(places):
        piece = scaled[sample % len(scaled)][top : top + size, left : left + size]
        pieces[sample] = piece.transpose(2, 0, 1)
    return pieces


def run_contestant(name: str, python: str, work: Path, setting: Setting, cold: bool) -> dict[str, Any]:
    """Measure one contestant in a process of its own; say why where that fails."""
    result = work / "result.json"
    result.unlink(missing_ok=True)
    request = {"name": name, "work": str(work), "setting": asdict(setting), "cold": cold, "result": str(result)}
    process = subprocess.Popen(
        [python, str(Path(__file__).with_name("run_one.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that its workers end with it
        text=True,
    )
    try:
        _, errors = process.communicate(json.dumps(request), timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"left_out": f"not done within {TIMEOUT_S} s"}
    finally:
        _end_group(process.pid)
    if not result.exists():
        lines = [line for line in errors.strip().splitlines() if line.strip()] or ["no message"]
        return {"left_out": f"failed: {lines[-1].strip()}"}
    measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_all(names: list[str], options: argparse.Namespace, work: Path, setting: Setting) -> Results:
    """Measure all, `repeat` times, each time going through all of them; keep the best."""
    results: Results = {}
    for repetition in range(options.repeat):
        for name in names:
            best = results.get(name)
            if best is not None and "left_out" in best:
                continue
            cold = not options.warm_only
            if options.tiny:
                got = run({"name": name, "work": str(work), "setting": asdict(setting), "cold": cold})
            else:
                python = options.peers_python if name in PEER_NAMES else sys.executable
                got = run_contestant(name, python, work, setting, cold)
            results[name] = got if best is None else _better(best, got)
            shown = got.get("left_out") or f"{got['samples_per_s']:,.0f} samples/s"
            print(f"  {repetition + 1}/{options.repeat} {name}: {shown}", file=sys.stderr)
    return results


def _better(best: dict[str, Any], got: dict[str, Any]) -> dict[str, Any]:
    if "left_out" in got:
        return best
    faster = got if got["samples_per_s"] > best["samples_per_s"] else best
    cold = [one["cold_samples_per_s"] for one in (best, got) if one["cold_samples_per_s"] is not None]
    return {**faster, "cold_samples_per_s": max(cold, default=None)}


def print_results(results: Results) -> None:
    print(f"\n{'':<56}{'samples/s':>11}{'cold':>11}{'MB':>8}{'CPU s/1,000':>13}")
    for name, row in results.items():
        if "left_out" in row:
            print(f"{name:<56}  left out: {row['left_out']}")
            continue
        cold = "" if row["cold_samples_per_s"] is None else f"{row['cold_samples_per_s']:,.0f}"
        print(
            f"{name:<56}{row['samples_per_s']:>11,.0f}{cold:>11}{row['stored_nbytes'] / 1e6:>8,.1f}"
            f"{row['cpu_s_per_1000']:>13.3f}  {'; '.join(row['notes'])}"
        )


def print_rest(opening: dict[str, Any], gil: dict[str, Any]) -> None:
    print()
    for kind, row in opening.items():
        print(
            f"opening {row['samples']:,} samples, {kind}: {row['open_s']:.3f} s (libhdf5 alone "
            f"{row['libhdf5_open_s']:.4f} s), pickled {row['pickled_nbytes_per_sample']:.1f} bytes a sample"
        )
    if gil:
        empty = "not measured" if gil["by_empty_calls_us"] is None else f"{gil['by_empty_calls_us']:.1f} us"
        print(
            f"Python per sample (full shuffle, compressed): {gil['by_clock_us']:.1f} us outside pread and decode by "
            f"the clock; {empty} with both calls replaced by empty ones"
        )


def print_goals(goals: list[Goal]) -> None:
    print(f"\n{'goal':<72}{'wanted':>10}{'got':>11}{'by CPU':>9}")
    for goal in goals:
        got = "no figure" if goal.got is None else f"{goal.got:,.0f}" if goal.got >= 1000 else f"{goal.got:.3g}"
        by_cpu = "" if goal.by_cpu is None else f"{goal.by_cpu:.3g}"
        reached = "" if goal.got is None else "reached" if goal.reached else "MISSED"
        print(f"{goal.what:<72}{goal.sign + f' {goal.wanted:,g}':>10}{got:>11}{by_cpu:>9}  {reached}")


def plot(results: Results, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    rows = sorted(
        (
            (name, row["samples_per_s"])
            for name, row in results.items()
            if "left_out" not in row and "32 px" not in name
        ),
        key=lambda pair: pair[1],
    )
    figure = Figure(figsize=(10, 0.26 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    colours = ["#888888" if n.startswith("limit") else "#c44e52" if n in PEER_NAMES else "#4c72b0" for n, _ in rows]
    bars = axes.barh([name for name, _ in rows], [rate for _, rate in rows], color=colours)
    axes.bar_label(bars, labels=[f"{rate:,.0f}" for _, rate in rows], padding=3, fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xscale("log")
    axes.margins(x=0.12, y=0.01)
    axes.set_xlabel("samples/s, warm (grey: limits of the machine, blue: h5cache, red: others)")
    figure.savefig(path, dpi=130)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of pictures (default: generated ones)")
    parser.add_argument("--samples", type=int, default=4000, help="pictures of 3x224x224")
    parser.add_argument("--small-samples", type=int, default=50_000, help="pictures of 3x32x32")
    parser.add_argument("--open-samples", type=int, default=1_000_000, help="samples of the dataset to be opened")
    parser.add_argument("--threads", type=int, default=2, help="threads or workers, the same for everyone")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions; the best counts")
    parser.add_argument("--seconds", type=float, default=1.5, help="time epochs for at least so long")
    parser.add_argument("--peers-python", default=sys.executable, help="an interpreter that has the peers' packages")
    parser.add_argument("--only", action="append", help="only contestants whose name has this in it; may be repeated")
    parser.add_argument("--warm-only", action="store_true", help="no cold runs")
    parser.add_argument("--work", type=Path, help="keep samples and stores in this folder, for the next run")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--plot", type=Path, help="also draw them here (needs matplotlib)")
    parser.add_argument("--tiny", action="store_true", help="few small samples, one repetition: does it run?")
    options = parser.parse_args()
    if options.tiny:
        options.samples, options.small_samples, options.open_samples = 48, 512, 4096
        options.repeat, options.seconds = 1, 0.0
    return options


@contextmanager
def work_folder(options: argparse.Namespace) -> Iterator[Path]:
    """Give a folder of samples and stores: the one asked for, else one that is removed at the end."""
    work = options.work or Path(tempfile.mkdtemp(prefix="h5cache-loading-"))
    size = 160 if options.tiny else 224  # still one sample a block
    described = {
        "images": str(options.images and options.images.resolve()),
        "samples": [options.samples, size, options.small_samples],
    }
    try:
        note = work / "samples.json"
        if not note.exists():
            write_sources(work, options.images, options.samples, size, options.small_samples)
            note.write_text(json.dumps(described))
        elif json.loads(note.read_text()) != described:
            raise SystemExit(f"{work} holds other samples: {note.read_text()}; name another folder")
        yield work
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)


def main() -> None:
    options = parse_options()
    only = options.only or [""]
    names = [name for name in CONTESTANTS if any(part.lower() in name.lower() for part in only)]
    setting = Setting(options.threads, 16 if options.tiny else BATCH_SIZE, options.seconds, MOST_S)
    opening: dict[str, Any] = {}
    gil: dict[str, Any] = {}
    with work_folder(options) as work:
        results = run_all(names, options, work, setting)
        if options.only is None:
            opening = measure_opening(work, options.open_samples, options.repeat)
            gil = measure_gil(work / "stores" / "h5cache", setting.batch_size, 2 * options.repeat)
    print(
        f"{options.samples} samples of 3x224x224 and {options.small_samples} of 3x32x32, {options.threads} threads or "
        f"workers, best of {options.repeat} interleaved repetitions"
    )
    if options.tiny:
        print("a tiny run, of smaller samples: the figures mean nothing")
    print_results(results)
    print_rest(opening, gil)
    goals = check_goals(results, opening)
    print_goals(goals)
    if options.json:
        told = {"results": results, "opening": opening, "gil": gil, "goals": [asdict(goal) for goal in goals]}
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
