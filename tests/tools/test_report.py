"""The report: what it tells, what it finds, that it is one page for itself, and how it looks in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from h5cache import Field, Writer
from h5cache.load.options import LoaderOptions
from h5cache.report import main
from h5cache.tools.findings import Finding
from h5cache.tools.report import Report, collect_report
from h5cache.tools.report_page import render_page

from .conftest import CLASSES, NUM_SAMPLES, SHAPE, Shell, labels, pictures, write


def noisy(count: int) -> np.ndarray[Any, Any]:
    """Pictures that are all different, byte for byte."""
    rng = np.random.default_rng(1)
    return (pictures(count) // 2 + rng.integers(0, 40, (count, *SHAPE))).astype(np.uint8)


def report_of(path: Path, **options: Any) -> tuple[Report, str]:
    report = collect_report(path, **options)
    return report, render_page(report, str(path))


def titles(report: Report) -> list[str]:
    return [finding.title for finding, _ in report.findings]


def found(report: Report, words: str) -> Finding:
    matching = [finding for finding, _ in report.findings if words in finding.title]
    assert len(matching) == 1, titles(report)
    return matching[0]


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return write(tmp_path / "clean.h5", noisy(NUM_SAMPLES), provenance={"transform": "none <b>"})


def test_page_has_every_section_and_nothing_from_outside(clean: Path) -> None:
    report, page = report_of(clean)
    sections = re.findall(r'<section id="(\w+)"', page)
    assert sections == [
        *("problems", "pictures", "classes", "values", "sizes", "shuffle", "extremes", "provenance"),
    ]
    assert page.count("<img") == page.count('src="data:image/') == 3 * 8 + 16
    assert all(re.findall(r'<img[^>]* alt="([^"]+)"', page))
    assert page.count("<svg") == 2
    for word in ("clean.h5", "cat", "cat/0", "zstd level 1", "none &lt;b&gt;", "against .pt", "normalize=(("):
        assert word in page
    assert not re.search("https?:|<script|<link|@import", page)
    assert "prefers-color-scheme:dark" in page
    assert titles(report) == []
    assert "<b>None.</b>" in page


def test_value_ranges_are_those_of_the_data(clean: Path) -> None:
    image = noisy(NUM_SAMPLES)
    report, _ = report_of(clean, samples=NUM_SAMPLES)
    (values,) = report.values
    assert [one.name for one in values.channels] == ["red", "green", "blue"]
    for channel, one in enumerate(values.channels):
        own = image[:, channel].astype(float)
        assert (one.low, one.high) == (own.min(), own.max())
        assert one.mean == pytest.approx(own.mean())
        assert one.std == pytest.approx(own.std())
        assert len(one.counts) == 64
    assert values.axis == (0, 255)


def test_exact_codes_are_told_by_their_float_values(normalised: Path) -> None:
    report, page = report_of(normalised, samples=20)
    (values,) = report.values
    assert values.exact_codes
    assert values.num_looked_at == 20
    assert 0 <= values.axis[0] < values.axis[1] <= 1
    assert "exact 8-bit codes" in page


def test_problems_are_found_and_shown(tmp_path: Path) -> None:
    count = 130
    image, label = noisy(count), labels(count)
    label[:] = 0
    label[-3:] = 1
    label[5] = 77
    image[10], image[11] = 0, 90
    image[21] = image[20]
    image[-1] = image[30]
    path = tmp_path / "dirty.h5"
    fields = {"image": Field("uint8", SHAPE), "label": Field("int64"), "x": Field("float32", (4,))}
    x = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    x[7, 1], x[8, 2] = np.nan, np.inf
    named = [f"{number}" for number in range(count)]
    named[3] = named[2]
    with Writer(path, fields, classes=CLASSES, provenance={"skipped": [["bad.jpg", "truncated"]]}) as writer:
        writer.append(image=image, label=label, x=x, key=named)
    report, page = report_of(path)
    assert found(report, "1 label out of range").level == "bad"
    assert found(report, "x has values that are not finite").level == "bad"
    assert "1 NaN and 1 infinite" in found(report, "not finite").detail
    assert found(report, "all zero").samples == (10,)
    assert found(report, "of a single value").samples == (11,)
    assert found(report, "same image under two labels").samples == (30, count - 1)
    assert found(report, "2 samples are copies of others").samples == (20, 21, 30, count - 1)
    assert "owl" in found(report, "1 class without a sample").detail
    assert "cat has 126, dog 3" in found(report, "Unbalanced").detail
    assert "bad.jpg: truncated" in found(report, "1 sample of the source skipped").detail
    found(report, "1 key given more than once")
    assert [finding.level for finding, _ in report.findings] == sorted(
        (finding.level for finding, _ in report.findings), key=["bad", "warn", "note"].index
    )
    tiles = {finding.title: [tile.sample for tile in shown] for finding, shown in report.findings}
    assert tiles["1 sample of image is all zero"] == [10]
    assert "Wrong:" in page


def test_blank_pictures_are_found_outside_the_samples_looked_at(tmp_path: Path) -> None:
    image = noisy(NUM_SAMPLES)
    image[97] = 13
    report, _ = report_of(write(tmp_path / "blank.h5", image), samples=1)
    assert found(report, "of a single value").samples == (97,)


@pytest.mark.parametrize("codec", ["auto", "none"])
def test_blank_pictures_are_all_counted_and_are_no_copies_of_each_other(tmp_path: Path, codec: str) -> None:
    image = noisy(NUM_SAMPLES)
    image[20:85] = 0
    image[90:93] = np.array([10, 200, 30], np.uint8)[:, None, None]
    with Writer(tmp_path / "blank.h5", {"image": Field("uint8", SHAPE, codec=codec)}) as writer:
        writer.append(image=image, key=[str(number) for number in range(NUM_SAMPLES)])
    report, _ = report_of(tmp_path / "blank.h5", samples=NUM_SAMPLES if codec == "none" else 1)
    assert titles(report) == ["65 samples of image are all zero", "3 samples of image are of a single value"]


def test_sorted_data_makes_a_small_window_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 4096
    image = np.random.default_rng(0).integers(0, 255, (count, 1, 32, 32)).astype(np.uint8)
    path = tmp_path / "sorted.h5"
    fields = {"image": Field("uint8", (1, 32, 32), chunk_samples=16), "label": Field("int64")}
    with Writer(path, fields) as writer:
        writer.append(image=image, label=np.arange(count) // 64)
    report, _ = report_of(path, samples=4)
    assert titles(report) == ["Samples have no keys"]  # the default window holds all of so small a dataset
    monkeypatch.setattr("h5cache.tools.mixing.LoaderOptions", partial(LoaderOptions, window_nbytes=1))
    report, page = report_of(path, samples=4)
    assert found(report, "window of shuffle").level == "warn"
    assert report.shuffle is not None
    assert report.shuffle.stored.label_ratio is not None
    assert report.shuffle.stored.label_ratio < 0.4
    assert report.shuffle.full.label_ratio == pytest.approx(1, abs=0.02)
    ratios = [one.label_ratio or 0.0 for _, one in report.shuffle.windows]
    assert len(ratios) > 3
    assert ratios == sorted(ratios)
    assert "chunk, window 1 (default)" in page


def test_damaged_samples_are_told_of_and_the_page_is_made(clean: Path) -> None:
    from h5cache.format.open import open_dataset

    storage = open_dataset(clean).storage["image"]
    with open(clean, "r+b") as file:
        file.seek(int(storage.chunk_offsets[2]) + int(storage.block_offsets[2 * 16 + 1]) + 9)
        file.write(b"\xff\x00\xff")
    report, page = report_of(clean, samples=NUM_SAMPLES)
    assert found(report, "damaged").level == "bad"
    assert "chunk" in found(report, "damaged").detail
    assert '<section id="pictures"' in page


def test_folder_of_shards_is_reported(folder: Path) -> None:
    report, page = report_of(folder)
    assert "a folder of 4 shards" in page
    assert len(report.rows) == 3


def test_foreign_file_is_reported_with_what_converting_would_give(foreign: Path) -> None:
    report, page = report_of(foreign)
    assert "convert" in found(report, "Not written by h5cache").detail
    assert "An HDF5 file that h5cache did not write" in page
    assert [row.name for row in report.rows] == ["label 0", "label 1", "label 2"]
    assert page.count("<img") >= 24


def test_duplicates_of_small_samples_are_found_by_reading_them(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 255, (200, 3, 16, 16)).astype(np.uint8)
    image[150] = image[3]
    with Writer(tmp_path / "small.h5", {"image": Field("uint8", (3, 16, 16))}) as writer:
        writer.append(image=image)
    report, page = report_of(tmp_path / "small.h5")
    assert found(report, "1 sample is a copy of another").samples == (3, 150)
    assert '<section id="classes"' not in page
    assert "drawn at random" in page


def test_dataset_without_pictures_or_labels_is_reported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with Writer(tmp_path / "vectors.h5") as writer:
        writer.append(
            x=rng.normal(size=(300, 20)).astype(np.float32), score=rng.normal(size=300), seen=rng.random(300) < 0.5
        )
    report, page = report_of(tmp_path / "vectors.h5")
    assert [field.name for field in report.values] == ["x", "score", "seen"]
    assert report.values[2].channels[0].counts != ()
    assert "<img" not in page
    assert page.count("<svg") == 4


def test_empty_dataset_is_reported(tmp_path: Path) -> None:
    with Writer(tmp_path / "empty.h5", {"image": Field("uint8", (3, 8, 8)), "label": Field("int64")}):
        pass
    _, page = report_of(tmp_path / "empty.h5", bench=True)
    assert "empty.h5" in page


def test_thousand_classes_are_shown_by_their_largest_and_a_curve(tmp_path: Path) -> None:
    label = np.concatenate([np.arange(1000), np.repeat([3, 5], 40)])
    image = np.random.default_rng(0).integers(0, 255, (len(label), 3, 8, 8)).astype(np.uint8)
    names = [f"class {number}" for number in range(1000)]
    with Writer(tmp_path / "many.h5", classes=names) as writer:
        writer.append(image=image, label=label)
    report, page = report_of(tmp_path / "many.h5", samples=10)
    assert len(report.rows) == 24
    assert "the 24 largest of 1,000 classes" in page
    assert "all 1,000 classes, largest first" in page
    assert {"class 3", "class 5"} <= {row.name for row in report.rows}


def test_bench_measures_every_order_by_threads(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h5cache.tools.mixing.RATE_SECONDS", 0.02)
    report, page = report_of(clean, samples=4, bench=True)
    assert {one.shuffle for one in report.rates} == {"none", "chunk", "full"}
    assert all(one.samples_per_s > 0 for one in report.rates)
    assert '<section id="speed"' in page
    busy = "The machine was busy"
    assert busy in render_page(replace(report, load_per_core=5.0), "clean.h5")
    assert busy not in render_page(replace(report, load_per_core=0.3), "clean.h5")


def test_same_dataset_and_seed_give_the_same_page(clean: Path) -> None:
    assert report_of(clean)[1] == report_of(clean)[1]
    assert report_of(clean)[1] != report_of(clean, seed=1)[1]


def test_names_in_the_file_cannot_leave_their_place(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    path = tmp_path / "evil.h5"
    with Writer(path, classes=(evil, "b"), provenance={evil: {evil: evil}}) as writer:
        writer.append(image=noisy(40), label=np.arange(40) % 2, key=[f'"><img src=x>{n}{evil}' for n in range(40)])
    _, page = report_of(path)
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "default-src 'none'" in page


def test_command_writes_the_page_and_names_the_problems(
    tmp_path: Path, clean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert main([str(clean), "-o", str(out), "--samples", "8"]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert re.fullmatch(r".*page\.html: [\d.]+ kB, no problems\n", capsys.readouterr().out)
    assert main([str(clean), "-o", str(out)]) == 0  # over an older page
    assert sorted(one.name for one in tmp_path.iterdir()) == ["clean.h5", "page.html"]


@pytest.mark.parametrize(
    "output, words", [("", "folder"), ("clean.h5", "HDF5 file"), ("absent/page.html", "does not exist")]
)
def test_command_refuses_an_output_that_cannot_be(
    tmp_path: Path, clean: Path, capsys: pytest.CaptureFixture[str], output: str, words: str
) -> None:
    before = clean.read_bytes()
    assert main([str(clean), "-o", str(tmp_path / output)]) == 2
    assert words in capsys.readouterr().err
    assert clean.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["clean.h5"]


def test_command_says_what_it_cannot_read(tmp_path: Path, shell: Shell) -> None:
    done = shell("h5cache.report", tmp_path / "absent.h5")
    assert done.returncode == 2
    assert "absent.h5" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "report.html").exists()
    assert shell("h5cache.report", tmp_path / "absent.h5", "--samples", "0").returncode == 2
    assert "examples:" in shell("h5cache.report", "--help").stdout


# In a browser

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt install chromium)")

#: Writes what the browser made of the page into its title, where --dump-dom shows it.
PROBE = """<script>addEventListener("load",()=>{
const images=[...document.images],charts=[...document.querySelectorAll("svg")];
const box=e=>e.getBoundingClientRect();
document.title=JSON.stringify({images:images.length,loaded:images.filter(i=>i.complete&&i.naturalWidth>0&&box(i).width>20).length,
charts:charts.length,drawn:charts.filter(c=>box(c).width>100&&[...c.querySelectorAll("path")].some(p=>p.getTotalLength()>100)).length,
bars:[...document.querySelectorAll(".h5c-fill")].filter(b=>box(b).width>2&&box(b).height>4).length,
wide:document.documentElement.scrollWidth>innerWidth})})</script>"""


def browse(profile: Path, page: Path, *options: str) -> str:
    flags = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        f"--user-data-dir={profile}",
    ]
    done = subprocess.run(
        [str(CHROMIUM), *flags, *options, page.as_uri()], capture_output=True, check=True, text=True, timeout=60
    )
    return done.stdout


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page, and the page with the probe."""
    folder = tmp_path_factory.mktemp("browser")
    image = noisy(NUM_SAMPLES)
    image[np.arange(NUM_SAMPLES), labels(NUM_SAMPLES)] //= 4
    image[np.arange(NUM_SAMPLES), labels(NUM_SAMPLES)] += 190  # cats are red, dogs green, owls blue
    data = write(folder / "train.h5", image)
    _, page = report_of(data)
    (folder / "page.html").write_text(page, encoding="utf-8")
    probed = re.sub(r"<meta http-equiv=[^>]*>", "", page).replace("</head>", PROBE + "</head>")
    (folder / "probe.html").write_text(probed, encoding="utf-8")
    return folder


@needs_chromium
@pytest.mark.parametrize("width", [1100, 500])
def test_browser_draws_all_pictures_and_charts(browsed: Path, tmp_path: Path, width: int) -> None:
    dom = browse(tmp_path / "profile", browsed / "probe.html", f"--window-size={width},900", "--dump-dom")
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None
    seen = json.loads(unescape(title.group(1)))
    assert (seen["images"], seen["loaded"]) == (40, 40)
    assert (seen["charts"], seen["drawn"]) == (2, 2)
    assert seen["bars"] == 3 + 3
    assert not seen["wide"], "the page must not scroll sideways"


@needs_chromium
@pytest.mark.parametrize("scheme, dark", [("1", False), ("0", True)])
def test_screenshot_is_light_or_dark_and_full_of_colours(
    browsed: Path, tmp_path: Path, scheme: str, dark: bool
) -> None:
    shot = tmp_path / "shot.png"
    browse(
        tmp_path / "profile",
        browsed / "page.html",
        "--window-size=1100,1200",
        f"--blink-settings=preferredColorScheme={scheme}",
        f"--screenshot={shot}",
    )
    pixels = cv2.imread(os.fspath(shot))
    assert pixels.shape[:2] == (1200, 1100)
    ground = pixels[4, 4].mean()
    assert ground < 60 if dark else ground > 200
    for channel in range(3):  # the pictures, by the tone of their class; letters, bars and cards have no such colours
        others = np.delete(pixels, channel, axis=2).max(axis=2).astype(int)
        assert ((pixels[..., channel] > 180) & (others < 150)).mean() > 0.02
    assert len(np.unique(pixels.astype(np.int32) @ [1, 256, 65536])) > 1000
