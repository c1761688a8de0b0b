"""Checks a harness on the wire: `python -m handmesh.conformance.harness --type NAME`.

It needs a mesh that runs, and nothing of the harness but its type and two sentences that it understands. Read in this
order: `checks`, what is checked; `rules`, what every log has to obey; `subject`, what the checks are made with.
"""
