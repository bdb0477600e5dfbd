"""The progress bar: quiet in pipes, gone from terminals when all is done, and left standing in notebooks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tqdm.auto
import tqdm.notebook
from convert_samples import small

from h5cache import convert_dataset
from h5cache.convert.problems import ConversionStopped


class Shown:
    """What a notebook still shows of each bar."""

    def __init__(self) -> None:
        self.bars: list[Any] = []

    def texts(self) -> list[str]:
        shown = [bar for bar in self.bars if bar.container.layout.visibility != "hidden"]
        return [" ".join(str(bar.container).split()) for bar in shown]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Let tqdm believe that it runs in a notebook; nothing is displayed, but the widgets are real."""
    pytest.importorskip("ipywidgets")
    shown = Shown()

    class Bar(tqdm.notebook.tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options, display=False)
            shown.bars.append(self)

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    return shown


def test_bar_in_a_notebook_stays_with_its_final_count_and_rate(pictures: Path, tmp_path: Path, notebook: Shown) -> None:
    small(pictures, tmp_path / "out.h5")
    (text,) = (one.replace("\u2007", " ") for one in notebook.texts())
    assert "converted: 100%" in text
    assert "100/100" in text
    assert "samples/s" in text
    assert "ratio=" in text


def test_bar_of_an_iterable_in_a_notebook_stays(tmp_path: Path, notebook: Shown) -> None:
    convert_dataset(({"x": float(number)} for number in range(50)), tmp_path / "out.h5")
    (text,) = (one.replace("\u2007", " ") for one in notebook.texts())
    assert "converted: " in text
    assert "50 samples" in text


def test_bar_of_a_stopped_run_in_a_notebook_stays_where_it_was(pictures: Path, tmp_path: Path, notebook: Shown) -> None:
    def stop() -> None:
        if notebook.bars and notebook.bars[-1].n:
            raise KeyboardInterrupt

    with pytest.raises(ConversionStopped):
        small(pictures, tmp_path / "out.h5", check_stop=stop)
    assert "converting" in notebook.texts()[0]
    assert notebook.bars[0].container.children[1].bar_style == "danger"


def test_bar_of_parts_that_are_written_anew_takes_the_place_of_the_first(tmp_path: Path, notebook: Shown) -> None:
    # Few values at first, so exact codes; far too many for them later on.
    rows = np.zeros((400, 3, 32, 32), np.float32)
    rows[200:] = np.random.default_rng(0).random((200, 3, 32, 32), np.float32)
    convert_dataset({"x": rows}, tmp_path / "out.h5", shuffle=False, workers=0, part_samples=64)
    assert len(notebook.bars) > 1
    (text,) = (one.replace("\u2007", " ") for one in notebook.texts())
    assert "converted: 100%" in text


def test_bar_on_a_terminal_goes_when_all_is_done(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    small(pictures, tmp_path / "out.h5")
    shown = capsys.readouterr().err
    assert "converting" in shown
    assert shown.rstrip(" ").endswith("\r")
