"""What the demonstration found, in words and bars: short enough to show a colleague. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from h5cache.terminal import PLAIN, Column, Style, format_bar, format_duration, format_nbytes, format_table
from h5cache.tools.demo import DemoResult
from h5cache.tools.training import Training

__all__ = ["format_demo", "format_next_steps", "sparkline"]

BAR_WIDTH = 16
SPARKS = "▁▂▃▄▅▆▇█"
CURVE_POINTS = 16


def format_demo(result: DemoResult, style: Style = PLAIN, *, unicode: bool = True) -> str:
    """Return sizes, speeds and training, as two tables and what follows from them."""
    return "\n".join(
        [
            style.bold(
                f"{result.num_samples:,} pictures ({', '.join(result.classes)}), {result.size} px: "
                f"converted in {format_duration(result.convert_s)} on {_cores(result.cores)}"
            ),
            "",
            _forms_table(result, style, unicode),
            "",
            _exactness(result),
            "",
            style.bold(
                f"training a small network ({result.num_parameters:,} parameters, CPU) for "
                f"{result.seconds_train:g} s from each, in turns"
            ),
            "",
            _training_table(result.trainings, style, unicode),
            "",
            style.bold(style.green(_verdict(result))),
            *([style.dim(f"note: {result.note}")] if result.note else []),
        ]
    )


def format_next_steps(style: Style = PLAIN) -> str:
    """Return what to do now with one's own data."""
    rows = [
        ["h5cache convert FOLDER train.h5", "pictures in class folders, .pt, .npy"],
        ["h5cache doctor FOLDER", "what your .pt files cost, and why"],
        ["h5cache bench train.h5 --against FOLDER", "this comparison on your own data"],
        ["notebooks/01_convert.ipynb", "step by step, with pictures"],
    ]
    width = max(len(command) for command, _ in rows)
    lines = [f"  {style.cyan(command)}{' ' * (width - len(command))}  {style.dim(text)}" for command, text in rows]
    return "\n".join([style.bold("next, with your own data"), *lines])


def sparkline(values: Sequence[float], unicode: bool = True) -> str:
    """Return a curve from 0 to the highest value, one character each.

    >>> sparkline([1.4, 0.7, 0.1])
    '█▅▁'
    """
    if not unicode or not values:
        return ""
    most = max(values) or 1.0
    return "".join(SPARKS[min(len(SPARKS) - 1, int(max(0.0, value) / most * len(SPARKS)))] for value in values)


def _forms_table(result: DemoResult, style: Style, unicode: bool) -> str:
    most_nbytes = max(form.nbytes for form in result.forms)
    most_rate = max(form.samples_per_s for form in result.forms) or 1.0
    columns = [
        Column("kept as", paint=None),
        Column("on disk", ">"),
        Column(""),
        Column("samples/s", ">"),
        Column(""),
    ]
    rows = []
    for form in result.forms:
        rows.append(
            [
                form.name,
                format_nbytes(form.nbytes),
                _padded(format_bar(form.nbytes / most_nbytes, BAR_WIDTH, unicode)),
                f"{form.samples_per_s:,.0f}",
                format_bar(form.samples_per_s / most_rate, BAR_WIDTH, unicode),
            ]
        )
    *others, ours = format_table(columns, rows, style).splitlines()
    return "\n".join([*others, style.cyan(ours)])


def _exactness(result: DemoResult) -> str:
    how = "bit for bit" if result.is_exact else "but for rounding"
    return (
        f"  h5cache keeps uint8 and delivers the float32 of the .pt files, {how}.\n"
        "  JPEG is small too, but is decoded and scaled anew in every epoch."
    )


def _training_table(trainings: Sequence[Training], style: Style, unicode: bool) -> str:
    columns = [
        Column("from"),
        Column("samples/s", ">"),
        Column("waiting", ">"),
        Column("steps", ">"),
        Column("loss", ">"),
        Column(""),
    ]
    arrow = "→" if unicode else "->"
    rows = []
    for name, one in zip((".pt + DataLoader", "h5cache + Loader"), trainings, strict=True):
        curve = one.loss_curve(CURVE_POINTS)
        loss = f"{curve[0]:.2f} {arrow} {curve[-1]:.2f}" if curve else ""
        rows.append(
            [
                name,
                f"{one.samples_per_s:,.0f}",
                f"{one.waited_share:.0%}",
                str(len(one.losses)),
                loss,
                sparkline(curve, unicode),
            ]
        )
    *others, ours = format_table(columns, rows, style).splitlines()
    return "\n".join([*others, style.cyan(ours)])


def _verdict(result: DemoResult) -> str:
    ours, tensors = result.forms[-1], next(form for form in result.forms if form.name == ".pt float32")
    theirs, mine = result.trainings
    smaller = tensors.nbytes / ours.nbytes
    reading, training = (
        first / second if second else float("inf")
        for first, second in ((ours.samples_per_s, tensors.samples_per_s), (mine.samples_per_s, theirs.samples_per_s))
    )
    return f"h5cache: {smaller:.1f}x smaller than .pt, read {reading:.1f}x as fast, training {training:.1f}x as fast"


def _padded(bar: str) -> str:
    return bar + " " * (BAR_WIDTH - len(bar))


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
