"""What command lines share: words for numbers, tables, colour, progress, and how a command ends.

Knows nothing of datasets, and reads no environment: a door hands it in. A door is

    def main(argv=None):
        return run_cli(_run, _parser(), argv, os.environ)
"""

from .console import PIPE_WIDTH, Console, wants_colour
from .run import (
    EXIT_BAD,
    EXIT_CODES,
    EXIT_GOOD,
    EXIT_INTERRUPTED,
    EXIT_READER_GONE,
    EXIT_TROUBLE,
    CommandError,
    describe_error,
    make_parser,
    run_cli,
    run_guarded,
)
from .text import (
    PLAIN,
    Column,
    Style,
    display_width,
    format_bar,
    format_count,
    format_duration,
    format_nbytes,
    format_ratio,
    format_table,
    printable,
    shorten,
)

__all__ = [
    "EXIT_BAD",
    "EXIT_CODES",
    "EXIT_GOOD",
    "EXIT_INTERRUPTED",
    "EXIT_READER_GONE",
    "EXIT_TROUBLE",
    "PIPE_WIDTH",
    "PLAIN",
    "Column",
    "CommandError",
    "Console",
    "Style",
    "describe_error",
    "display_width",
    "format_bar",
    "format_count",
    "format_duration",
    "format_nbytes",
    "format_ratio",
    "format_table",
    "make_parser",
    "printable",
    "run_cli",
    "run_guarded",
    "shorten",
    "wants_colour",
]
