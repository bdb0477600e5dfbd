"""What can be converted. One source per file; `source.py` is the contract."""
