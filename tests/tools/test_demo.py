"""`h5cache demo`: it runs from end to end, learns, tells the truth, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from h5cache.demo import main
from h5cache.terminal import Console, Style
from h5cache.tools.demo import DemoOptions, DemoResult, Form, run_demo
from h5cache.tools.demo_text import format_demo, format_next_steps, sparkline
from h5cache.tools.measure import Feed
from h5cache.tools.pictures import SCENE_CLASSES, generate_scene, make_clouds, write_class_folders
from h5cache.tools.training import Trainer, Training, make_network, train_in_turn

from .conftest import command, environment

TINY = DemoOptions(num_samples=32, seconds_train=0.05, seconds_read=0.02, batch_size=8)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    return run_demo(str(tmp_path_factory.mktemp("demo")), TINY, Console(io.StringIO(), io.StringIO()))


def test_demo_measures_every_form_and_h5cache_last(result: DemoResult) -> None:
    names = [form.name for form in result.forms]
    assert names == ["JPEG", ".pt float32", ".pt float32, zipped", ".pt uint8", "h5cache"]
    assert all(form.nbytes > 0 and form.samples_per_s > 0 for form in result.forms)


def test_demo_finds_the_same_tensors_bit_for_bit(result: DemoResult) -> None:
    assert result.is_exact


def test_demo_is_smaller_than_every_pt_form(result: DemoResult) -> None:
    sizes = {form.name: form.nbytes for form in result.forms}
    assert sizes["h5cache"] < min(size for name, size in sizes.items() if name.startswith(".pt"))


def test_demo_trains_both_from_the_same_start(result: DemoResult) -> None:
    assert all(one.losses and one.samples == 8 * len(one.losses) for one in result.trainings)


def test_demo_as_a_newcomer_runs_it_shows_tables_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        command("h5cache.demo", ["--samples", 32, "--seconds-train", 0.2]),
        cwd=tmp_path,
        env=environment({"TMPDIR": str(tmp_path)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert os.listdir(tmp_path) == []
    assert re.search(r"^  h5cache +[\d.]+ [kM]B +█", done.stdout, re.MULTILINE)
    assert re.search(r"^h5cache: [\d.]+x smaller than \.pt", done.stdout, re.MULTILINE)
    assert "h5cache convert FOLDER train.h5" in done.stdout
    assert "nothing is left behind" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_that_is_stopped_leaves_nothing_and_shows_no_traceback(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command("h5cache.demo", ["--samples", 3000]),
        cwd=tmp_path,
        env=environment({"TMPDIR": str(tmp_path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("h5cache-demo-*/pictures/*/*.jpg")) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert errors.strip() == "interrupted"
    assert os.listdir(tmp_path) == []


def test_keep_refuses_a_folder_that_is_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert main(["--keep", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("options", [["--samples", "3"], ["--seconds-train", "0"], ["--samples", "many"]])
def test_wrong_usage_is_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def shown() -> DemoResult:
    forms = (
        Form("JPEG", 16_500_000, 990.0),
        Form(".pt float32", 119_000_000, 2600.0),
        Form("h5cache", 17 * 10**6, 1e4),
    )
    losses = tuple(1.4 - 0.01 * step for step in range(100))
    trainings = (Training(3200, 3.0, 1.2, losses[:50]), Training(6400, 3.0, 0.1, losses))
    return DemoResult(600, ("apple", "leaf"), 128, 2, 1.6, forms, True, 24_612, 3.0, trainings)


def test_text_is_short_aligned_and_ends_with_the_verdict() -> None:
    text = format_demo(shown())
    lines = text.splitlines()
    assert lines[0] == "600 pictures (apple, leaf), 128 px: converted in 1.6 s on 2 cores"
    assert lines[-1] == "h5cache: 7.0x smaller than .pt, read 3.8x as fast, training 2.0x as fast"
    assert max(map(len, lines)) <= 80
    assert max(map(len, format_next_steps().splitlines())) <= 80
    assert "bit for bit" in text


def test_text_says_that_the_machine_was_busy() -> None:
    assert format_demo(replace(shown(), note="busy")).splitlines()[-1] == "note: busy"


def test_text_does_not_claim_exactness_that_was_not_found() -> None:
    assert "bit for bit" not in format_demo(replace(shown(), is_exact=False))


def test_text_is_coloured_only_if_asked_and_plain_ascii_where_needed() -> None:
    assert "\x1b" not in format_demo(shown()) + format_next_steps()
    assert "\x1b[" in format_demo(shown(), Style(colour=True))
    assert format_demo(shown(), unicode=False).isascii()


def test_sparkline_falls_with_the_values() -> None:
    assert sparkline([8, 4, 0]) == "█▅▁"
    assert sparkline([]) == ""
    assert sparkline([1.0], unicode=False) == ""


def test_loss_curve_is_means_over_equal_runs() -> None:
    assert Training(0, 1, 0, (4.0, 2.0, 1.0, 1.0)).loss_curve(2) == [3.0, 1.0]
    assert Training(0, 1, 0, (1.0,)).loss_curve(16) == [1.0]
    assert Training(0, 1, 0, ()).loss_curve(16) == []


def test_scenes_of_a_seed_are_the_same_whatever_the_threads(tmp_path: Path) -> None:
    for threads in (1, 3):
        write_class_folders(str(tmp_path / str(threads)), 8, seed=5, threads=threads)
    first = {path.relative_to(tmp_path / "1"): path.read_bytes() for path in (tmp_path / "1").rglob("*.jpg")}
    assert len(first) == 8
    assert all((tmp_path / "3" / name).read_bytes() == data for name, data in first.items())


def test_small_network_learns_the_classes_of_the_scenes() -> None:
    clouds = make_clouds(np.random.default_rng(0))
    names = list(SCENE_CLASSES)
    scenes = [generate_scene(np.random.default_rng([1, number]), names[number % 4], clouds) for number in range(64)]
    pictures = torch.from_numpy(np.stack([cv2.resize(scene, (64, 64)) for scene in scenes])).permute(0, 3, 1, 2)
    batch = (pictures.float() / 128 - 1, torch.arange(64) % 4)
    trainer = Trainer(make_network(4), Feed(lambda: [batch]))
    while len(trainer.result().losses) < 60:
        train_in_turn([trainer], 0.2, 1)
    losses = trainer.result().losses
    assert losses[-1] < 0.5 * losses[0]


def test_network_of_a_seed_is_the_same_and_leaves_the_global_seed_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, second = make_network(4, 1), make_network(4, 1)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_training_gives_the_threads_of_torch_back() -> None:
    before = torch.get_num_threads()
    batch = (torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64))
    train_in_turn([Trainer(make_network(2), Feed(lambda: [batch]))], 0.01, 1)
    assert torch.get_num_threads() == before
