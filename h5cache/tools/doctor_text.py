"""A diagnosis in words, for people at a terminal: cause, waste, cure, in this order, the biggest first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from h5cache.terminal import (
    PIPE_WIDTH,
    PLAIN,
    Column,
    Style,
    format_count,
    format_nbytes,
    format_ratio,
    format_table,
    printable,
)
from h5cache.tools.doctor import Diagnosis
from h5cache.tools.doctor_findings import Finding
from h5cache.tools.doctor_trial import Trial

__all__ = ["format_diagnosis"]

#: Lines of prose are no longer than this, however wide the terminal.
PROSE_WIDTH = 110


def format_diagnosis(diagnosis: Diagnosis, style: Style = PLAIN, *, width: int = PIPE_WIDTH) -> str:
    sections = [
        _heading(diagnosis, style, width),
        *(_finding(number, one, diagnosis, style, width) for number, one in enumerate(diagnosis.findings, 1)),
        _trial(diagnosis, style, width),
        _command(diagnosis, style, width),
        _verdict(diagnosis, style),
    ]
    return "\n\n".join(section for section in sections if section)


def _heading(diagnosis: Diagnosis, style: Style, width: int) -> str:
    files = format_count(diagnosis.num_files, "file")
    folders = f" in {format_count(diagnosis.num_folders, 'folder')}" if diagnosis.num_folders > 1 else ""
    first = f"{style.bold(printable(diagnosis.path))}: {files}{folders}, {format_nbytes(diagnosis.total_nbytes)}"
    if diagnosis.disk_nbytes > 1.05 * diagnosis.total_nbytes:
        first += f" ({format_nbytes(diagnosis.disk_nbytes)} of disk)"
    if not diagnosis.is_projected:
        return first
    return (
        first
        + "\n"
        + style.dim(
            f"{diagnosis.num_opened:,} of them, spread evenly, were opened; sizes marked ~ are projected from these "
            "(--sample N opens more)"
        )
    )


def _finding(number: int, finding: Finding, diagnosis: Diagnosis, style: Style, width: int) -> str:
    about = "~" if diagnosis.is_projected else ""
    size = ""
    if finding.waste_nbytes:
        part = 100 * finding.waste_nbytes / max(1, diagnosis.disk_nbytes)
        size = f": {about}{format_nbytes(finding.waste_nbytes)} wasted ({_percent(part)} of all)"
    opened = "" if diagnosis.num_files == 1 else f"{finding.num_files:,} of {diagnosis.num_opened:,} files opened"
    seen = opened + (f", such as {', '.join(map(printable, finding.examples))}" if finding.examples and opened else "")
    lines = [f"{number}. {style.yellow(printable(finding.title))}{style.bold(size)}"]
    for word, text in (("cause", finding.cause), ("seen in", seen), ("waste", finding.waste), ("cure", finding.cure)):
        if text:
            lines += _prose(word, printable(text), style, width)
    return "\n".join(lines)


def _percent(part: float) -> str:
    return f"{part:.0f} %" if part >= 10 else f"{part:.1f} %"


def _prose(word: str, text: str, style: Style, width: int) -> Iterator[str]:
    room = max(40, min(width, PROSE_WIDTH) - 12)
    for place, line in enumerate(textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)):
        yield f"   {style.cyan(f'{word:<7}') if not place else ' ' * 7}  {line}"


def _trial(diagnosis: Diagnosis, style: Style, width: int) -> str:
    trial = diagnosis.cure.trial
    if trial is None:
        return ""
    columns = [Column(""), Column("size", ">"), Column("against h5cache", ">", style.dim)]
    rows = [["these files", format_nbytes(diagnosis.total_nbytes), _against(diagnosis.total_nbytes, trial)]]
    if diagnosis.total_nbytes > 1.05 * trial.pt_nbytes:
        rows.append(
            ["the same tensors, cloned", f"~{format_nbytes(trial.pt_nbytes)}", _against(trial.pt_nbytes, trial)]
        )
    rows.append(["h5cache", f"~{format_nbytes(trial.h5cache_nbytes)}", ""])
    exact = "read back, and equal bit for bit" if trial.is_exact else style.red("NOT equal when read back")
    tried = (
        f"{trial.num_tried:,} of {format_count(trial.num_samples, 'sample')} written to a temporary dataset, {exact}"
    )
    how = [
        f"  {printable(one.name)}: {one.dtype} {'x'.join(map(str, one.shape))} as "
        f"{'exact 8-bit codes, ' if one.exact_codes else ''}{one.codec} ({format_ratio(one.ratio)} smaller)"
        for one in trial.fields
        if one.ratio > 1.005
    ]
    return "\n".join(
        [style.bold("What h5cache makes of it"), format_table(columns, rows, style), f"  {style.dim(tried)}"]
        + [style.dim(line) for line in how]
    )


def _against(nbytes: int, trial: Trial) -> str:
    ratio = nbytes / max(1, trial.h5cache_nbytes)
    return f"{format_ratio(ratio)} larger" if ratio >= 1 else f"{format_ratio(1 / ratio)} smaller"


def _command(diagnosis: Diagnosis, style: Style, width: int) -> str:
    cure = diagnosis.cure
    if not cure.commands:
        reason = list(
            _prose("", printable(f"h5cache cannot convert these files as they are: {cure.reason}"), style, width)
        )
        return "\n".join(line.strip() for line in reason)
    lines = [
        style.bold("Run" if diagnosis.findings else "To convert them"),
        *(f"  {style.green(command)}" for command in cure.commands),
    ]
    return "\n".join([*lines, *(style.dim(f"  {printable(note)}") for note in cure.notes)])


def _verdict(diagnosis: Diagnosis, style: Style) -> str:
    count = len(diagnosis.findings)
    if not count:
        return f"{style.green('healthy')}: nothing is wrong with these files"
    wasted = sum(one.waste_nbytes for one in diagnosis.findings)
    about = "about " if diagnosis.is_projected else ""
    cost = f", {about}{format_nbytes(wasted)} of {format_nbytes(diagnosis.disk_nbytes)} wasted" if wasted else ""
    return f"{style.yellow(format_count(count, 'problem'))}{cost}"
