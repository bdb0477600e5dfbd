"""Tests of the tools and their doors."""
