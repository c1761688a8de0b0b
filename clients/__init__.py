"""Clients and peers in other languages. Python reads this folder for `clients.conformance` alone."""
