"""What clients of a handmesh import: generated stubs, the Python client, the command, the scripted model."""
