"""Checks a hand that dials out: `python -m handmesh.conformance.hand --name NAME --command "..."`.

It needs a mesh that runs and a hand with a tool that runs commands of a shell. Read in this order: `checks`, what is
checked; `subject`, what the checks are made with; `relay`, the link that is cut.
"""
