"""The `handmesh` command.

`__main__` puts the commands together; a command's module holds its options and imports what it needs when it runs, so
that `handmesh --help` is quick. Text from a model, a tool or another machine is only printed through `escape`.
"""
