"""Harness types: one folder each, with `DESCRIPTION` and `make`. They do not know each other."""
