"""Drives the client program of each language through the same sessions, and compares what they print.

    python -m clients.conformance [LANGUAGE...]

Read in this order: `languages`, `program`, `log`, `checks`, `ground`, `__main__`. docs/clients.md explains it.
"""
