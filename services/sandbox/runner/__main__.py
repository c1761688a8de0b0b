"""Starts the runner: `python -m runner '<configuration as JSON>'`."""

from __future__ import annotations

from .daemon import main

if __name__ == "__main__":
    main()
