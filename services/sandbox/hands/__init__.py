"""Backends, one folder each, with `make(HandSettings) -> Hand`. They do not know each other."""
