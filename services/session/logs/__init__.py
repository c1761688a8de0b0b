"""Stores: one folder each, with `make(settings)`, an async context manager that gives a `log.Store`."""
