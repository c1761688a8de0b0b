"""One session on real parts, told step by step: `python -m handmesh.demo`, or `make demo`.

`stage` starts what is needed, `story` is what happens, `proof` says what must hold afterwards.
"""
