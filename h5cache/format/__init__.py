"""What a dataset is on disk. FORMAT.md, beside this file, says it on one page."""
