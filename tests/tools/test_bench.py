"""`h5cache bench`: what is measured, against what, and how it is told. No test looks at how fast anything is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
import torch

from h5cache import convert_dataset
from h5cache.bench import main
from h5cache.format.open import open_dataset
from h5cache.terminal import Style
from h5cache.tools import bench, measure, present
from h5cache.tools.bench import bench_dataset, plan_samples
from h5cache.tools.bench_plot import plot_bench
from h5cache.tools.bench_result import (
    BenchOptions,
    BenchResult,
    Measurement,
    OrderQuality,
    StepWait,
    make_verdict,
    to_json,
)
from h5cache.tools.bench_text import format_bench
from h5cache.tools.measure import Feed, drop_page_cache, measure_cold, measure_waiting, measure_warm, size_of

#: As quick as can be: one repetition, one thread, few batches.
QUICK = BenchOptions(batch_size=16, threads=(1,), orders=("full",), doors=("loader",), seconds=0.02, repetitions=1)
ARGUMENTS = ("--batch-size", "16", "--threads", "1", "--seconds", "0.02", "--repetitions", "1")


@pytest.fixture(autouse=True)
def few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MIN_BATCHES", 2)


@pytest.fixture
def jpegs(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(48):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 255, (6, 6, 3), np.uint8)
        cv2.imwrite(str(folder / f"{number}.jpg"), cv2.resize(coarse, (72, 64), interpolation=cv2.INTER_CUBIC))
    return tmp_path / "photos"


@pytest.fixture
def converted(jpegs: Path, tmp_path: Path) -> Path:
    convert_dataset(jpegs, tmp_path / "photos.h5", resize=56, size=48, workers=0, progress=False)
    return tmp_path / "photos.h5"


@pytest.fixture
def tensors(tmp_path: Path) -> Path:
    for number in range(48):
        folder = tmp_path / "tensors" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(torch.full((3, 48, 48), number, dtype=torch.uint8), folder / f"{number}.pt")
    return tmp_path / "tensors"


def rows(result: BenchResult) -> list[tuple[str, str, str, int | None, str]]:
    return [(one.way, one.door, one.order, one.threads, one.cache) for one in result.measurements]


def test_loader_is_measured_in_every_order_with_all_threads_and_other_doors_in_the_last(dataset: Path) -> None:
    options = replace(QUICK, threads=(1, 2), orders=("sequential", "chunk", "full"), doors=("loader", "batches"))
    result = bench_dataset(dataset, options)
    warm = [row for row in rows(result) if row[4] == "warm"]
    loader = [("h5cache", "loader", order, threads) for order in options.orders for threads in (1, 2)]
    assert [row[:4] for row in warm] == [*loader, ("h5cache", "batches", "full", 2)]
    assert [one.order for one in result.quality] == list(options.orders)


def test_plain_dataloader_has_no_chunk_order(dataset: Path) -> None:
    result = bench_dataset(dataset, replace(QUICK, orders=("chunk", "sequential"), doors=("dataloader",)))
    assert [row[:4] for row in rows(result) if row[4] == "warm"] == [("h5cache", "dataloader", "sequential", 1)]


def test_every_measurement_has_rates_bytes_and_cpu_time(dataset: Path) -> None:
    result = bench_dataset(dataset, replace(QUICK, repetitions=2))
    for one in result.measurements:
        assert len(one.samples_per_s) == 2
        assert one.best >= one.median > 0
        assert one.mb_per_s == pytest.approx(one.median * (3 * 96 * 96 + 8) / 1e6)
        assert one.cpu_s_per_1000 is None or one.cpu_s_per_1000 >= 0


def test_jpeg_folder_is_decoded_as_the_dataset_was_made(converted: Path, jpegs: Path) -> None:
    found = present.open_present(str(jpegs), open_dataset(converted), 16, 0, 1000)
    pictures, labels = next(iter(found.make()))
    assert found.name == "JPEG files through cv2"
    assert pictures.shape == (16, 3, 48, 48)
    assert pictures.dtype == torch.uint8
    assert set(labels.tolist()) == {0, 1}
    assert found.notes == ()


def test_against_jpeg_folder_measures_both_ways_warm_and_cold_or_says_why_not(converted: Path, jpegs: Path) -> None:
    result = bench_dataset(converted, replace(QUICK, against=str(jpegs), step_ms=1.0))
    assert ("yours", "files", "full", 1, "warm") in rows(result)
    assert ("yours", "files", "full", 1, "cold") in rows(result) or any("cold:" in note for note in result.notes)
    assert [wait.way for wait in result.steps] == ["h5cache", "yours"]
    assert result.speedup() is not None
    assert "your files" in make_verdict(result)


def test_against_pt_files_reads_them_as_they_are(converted: Path, tensors: Path) -> None:
    found = present.open_present(str(tensors), open_dataset(converted), 16, 0, 1000)
    pictures, labels = next(iter(found.make()))
    assert found.name == ".pt files through DataLoader"
    assert pictures.shape == (16, 3, 48, 48)
    assert torch.equal(pictures[:, 0, 0, 0] % 2, labels)
    result = bench_dataset(converted, replace(QUICK, against=str(tensors)))
    assert result.present == ".pt files through DataLoader"


def test_against_takes_no_more_files_than_are_measured_of_the_dataset(converted: Path, tensors: Path) -> None:
    found = present.open_present(str(tensors), open_dataset(converted), 16, 0, num_samples=10)
    assert len(found.paths) == 10
    assert {Path(path).parent.name for path in found.paths} == {"cat", "dog"}


def test_pictures_of_a_dataset_without_provenance_are_cropped_to_its_size(dataset: Path, jpegs: Path) -> None:
    found = present.open_present(str(jpegs), open_dataset(dataset), 16, 0, 1000)
    pictures, _ = next(iter(found.make()))
    assert pictures.shape[1:] == (3, 96, 96)
    assert "does not say" in found.notes[0]


@pytest.fixture
def own_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str) -> str:
        (tmp_path / f"{name}.py").write_text(
            "import torch\n"
            "def make_loader(batch_size):\n"
            "    return [(torch.zeros(batch_size, 3, 8, 8), torch.zeros(batch_size)) for _ in range(4)]\n"
            "def fixed():\n"
            "    return [{'image': torch.zeros(5, 3)}]\n"
            "number = 3\n"
        )
        return name

    return write


def test_against_function_measures_what_it_returns(dataset: Path, own_loader: Callable[[str], str]) -> None:
    name = own_loader("mine_a")
    result = bench_dataset(dataset, replace(QUICK, against=f"{name}:make_loader"))
    assert result.present == f"{name}:make_loader"
    assert ("yours", "files", "own", None, "warm") in rows(result)
    assert "your loader" in make_verdict(result)
    assert any("not known" in note for note in result.notes)


def test_against_function_without_batch_size_is_said(dataset: Path, own_loader: Callable[[str], str]) -> None:
    result = bench_dataset(dataset, replace(QUICK, against=f"{own_loader('mine_b')}:fixed"))
    assert any("takes no batch_size" in note for note in result.notes)


def measurement(way: str, rate: float, cache: str = "warm", threads: int = 2) -> Measurement:
    door, order = ("loader", "full") if way == "h5cache" else ("files", "full")
    return Measurement(way, door, order, threads, cache, (rate, rate * 1.1, rate * 0.9), rate / 10, 0.1)


def result_of(*measurements: Measurement, steps: tuple[StepWait, ...] = ()) -> BenchResult:
    options = BenchOptions(orders=("full",), threads=(1, 2), against="photos")
    quality = (OrderQuality("full", 0.998, 1.0),)
    return BenchResult("train.h5", 5000, 5000, 10**8, options, measurements, quality, steps, "JPEG files", ("a note",))


def test_verdict_names_both_rates_and_how_many_times() -> None:
    result = result_of(
        measurement("h5cache", 9000.0, threads=1),
        measurement("h5cache", 18900.0),
        measurement("yours", 950.0),
        measurement("h5cache", 9500.0, "cold"),
        measurement("yours", 1000.0, "cold"),
        steps=(StepWait("h5cache", 50, 0.1), StepWait("yours", 50, 219.4)),
    )
    assert make_verdict(result) == (
        "h5cache delivers 18,900 samples/s, your files 950: 19.9x as fast (9.5x cold); "
        "a step of 50 ms waits 0.1 ms instead of 219.4"
    )


def test_verdict_is_honest_where_the_present_way_is_faster() -> None:
    verdict = make_verdict(result_of(measurement("h5cache", 500.0), measurement("yours", 1000.0)))
    assert verdict == "your files deliver 1,000 samples/s, h5cache 500: your present way is 2.0x as fast here"


def test_verdict_without_present_way_names_the_order() -> None:
    assert make_verdict(result_of(measurement("h5cache", 18900.0))) == (
        "h5cache delivers 18,900 samples/s in true shuffle (1,890 MB/s)"
    )


def test_text_has_a_line_per_measurement_notes_and_the_verdict_last() -> None:
    result = result_of(measurement("h5cache", 18900.0), measurement("yours", 950.0), steps=(StepWait("yours", 50, 50),))
    lines = format_bench(result).splitlines()
    assert any(re.search(r"h5cache ds\.loader +full +2 +18,900 +█+ +20,790", line) for line in lines)
    assert any("JPEG files" in line and "2 proc" in line for line in lines)
    assert "the GPU idles 50% of the time" in "\n".join(lines)
    assert "note: a note" in lines
    assert lines[-1] == make_verdict(result)
    assert "\x1b" not in "\n".join(lines)
    assert "\x1b[" in format_bench(result, Style(colour=True))


@pytest.mark.parametrize("width", [80, 100, 140])
def test_table_fits_the_terminal(width: int) -> None:
    lines = format_bench(result_of(measurement("h5cache", 18900.0), measurement("yours", 950.0)), width=width)
    table = [line for line in lines.splitlines() if line.startswith("  ")]
    assert max(map(len, table)) <= width


def test_plot_is_an_svg_with_a_bar_per_measurement() -> None:
    result = result_of(measurement("h5cache", 18900.0), replace(measurement("yours", 950.0), door="<&>"))
    root = ElementTree.fromstring(plot_bench(replace(result, present="a <b> & c")))
    bars = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.get("class") is None]
    assert len(bars) == 2
    assert float(bars[0].get("width", 0)) > 10 * float(bars[1].get("width", 0))


def test_json_has_everything_and_nothing_that_json_lacks() -> None:
    document = to_json(result_of(measurement("h5cache", 18900.0), measurement("yours", 950.0)))
    assert json.loads(json.dumps(document)) == document
    assert set(document) == {
        "dataset", "num_samples", "num_measured", "stored_nbytes", "batch_size", "seconds", "repetitions", "device",
        "against", "measurements", "shuffle_quality", "steps", "speedup", "speedup_cold", "verdict", "notes",
    }  # fmt: skip
    assert set(document["measurements"][0]) == {
        "way", "door", "order", "threads", "cache", "samples_per_s", "mb_per_s", "cpu_s_per_1000_samples",
    }  # fmt: skip


def test_command_prints_json_and_draws(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plot = tmp_path / "bench.svg"
    assert main([str(dataset), *ARGUMENTS, "--orders", "full", "--doors", "loader", "--plot", str(plot), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_samples"] == 100
    assert document["batch_size"] == 16
    assert document["verdict"].startswith("h5cache delivers")
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--plot", "bench.png"], "bench.png: the picture is an SVG"),
        (["--plot", "no/such/folder/bench.svg"], "there is no such folder"),
        (["--orders", "random"], "orders are some of sequential, chunk, full"),
        (["--doors", "window"], "doors are some of loader, dataloader, batches"),
        (["--against", "no_such_module:f"], "no_such_module"),
        (["--against", "os:sep"], "not a function"),
        (["--against", "no/such/folder"], "there is no such file or folder"),
        (["--device", "warp"], "--device warp"),
        (["--threads", "0"], "--threads"),
        (["--seconds", "-1"], "--seconds"),
    ],
)
def test_wrong_usage_is_one_line(
    dataset: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(dataset), *ARGUMENTS, *options]) == 2
    captured = capsys.readouterr().err
    assert words in captured
    assert len(captured.strip().splitlines()) == 1


def test_missing_dataset_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.h5")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_file_that_cannot_be_decoded_is_named_in_one_line(
    converted: Path, jpegs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in jpegs.rglob("*.jpg"):
        path.write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    assert main([str(converted), *ARGUMENTS, "--doors", "loader", "--against", str(jpegs)]) == 2
    captured = capsys.readouterr().err
    assert "one of your files cannot be read" in captured
    assert len(captured.strip().splitlines()) == 1


def test_samples_measured_are_bounded_by_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "usable_memory_nbytes", lambda: 10**12)
    assert plan_samples(500, 1000) == 500
    assert plan_samples(10**6, 1000) == bench.MOST_SAMPLES
    assert plan_samples(10**6, 10**6) == bench.MOST_NBYTES // 10**6
    monkeypatch.setattr(bench, "usable_memory_nbytes", lambda: 4 * 10**6)
    assert plan_samples(500, 10**5) == 10


def test_large_dataset_is_measured_in_part_and_says_so(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MOST_SAMPLES", 50)
    result = bench_dataset(dataset, QUICK)
    assert result.num_measured == 50
    assert "measured on the first 50 of 100 samples" in result.notes


def count_up() -> Iterator[Any]:
    for _ in range(3):
        yield torch.zeros(4, 2)


def test_feed_goes_on_epoch_after_epoch() -> None:
    made: list[int] = []

    class Three:
        def __iter__(self) -> Iterator[Any]:
            made.append(1)
            return count_up()

    feed = Feed(Three, ahead=2)
    found = measure_warm(feed, 0.01)
    assert found.samples == 4 * found.batches
    assert found.nbytes == 32 * found.batches
    assert len(made) > 1


def test_feed_without_batches_says_so_instead_of_hanging() -> None:
    with pytest.raises(ValueError, match="no batches"):
        measure_warm(Feed(list), 0.01)


def test_waiting_leaves_out_the_first_batch_of_an_epoch() -> None:
    class SlowStart:
        def __iter__(self) -> Iterator[Any]:
            import time

            time.sleep(0.05)
            yield from count_up()

    assert measure_waiting(Feed(SlowStart), 0.2, 0.0) < 0.05


def test_cold_epoch_delivers_every_sample_once_where_it_can_be_measured(dataset: Path) -> None:
    from h5cache import H5TensorDataset

    with H5TensorDataset(dataset) as opened:
        feed = Feed(lambda: opened.loader(16, shuffle=True, threads=1))
        found = measure_cold(feed, [str(dataset)], 60.0)
        feed.close()
    assert found is None or found.samples == 100


@pytest.mark.parametrize(("load", "words"), [(0.5, ""), (9.4, "load 9.4 on 2 cores")])
def test_busy_machine_is_said(load: float, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert words in measure.describe_load(2)
    assert bool(measure.describe_load(2)) is bool(words)


def test_dropping_the_page_cache_leaves_contents_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(50_000))
    before = path.read_bytes()
    assert drop_page_cache([str(path)]) in (True, False)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("batch", "samples", "nbytes"),
    [
        (torch.zeros(4, 2), 4, 32),
        ((torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), 4, 64),
        ([np.zeros((3, 5), np.uint8), ["a", "b", "c"]], 3, 15),
        ({"image": torch.zeros(2, 3), "label": torch.zeros(2)}, 2, 32),
    ],
)
def test_size_of_batch_whatever_its_form(batch: Any, samples: int, nbytes: int) -> None:
    assert size_of(batch) == (samples, nbytes)
