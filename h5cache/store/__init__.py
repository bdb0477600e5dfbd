"""Byte ranges of named files. One store per file of this folder; today the local disk."""
