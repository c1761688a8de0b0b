"""Harness types: one folder each, with `make`. They do not know each other."""
