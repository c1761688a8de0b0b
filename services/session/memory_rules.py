"""Which memory stores a session reaches: read off its configuration, of which nobody else makes more."""

from __future__ import annotations

from handmesh.session.v1.config_pb2 import MemoryAccess, SessionConfig


def memory_rules(config: SessionConfig) -> list[MemoryAccess]:
    """Returns the stores that the model's memory tool or a hand's mount reaches, each once: to be written to if one of
    them may."""
    writes: dict[str, bool] = {}
    for store in config.memory_stores:
        writes[store.memory_store_id] = writes.get(store.memory_store_id, False) or not store.read_only
    for _, hand in sorted(config.hands.items()):
        for resource in hand.resources:
            if resource.WhichOneof("source") == "memory":
                mount = resource.memory
                writes[mount.memory_store_id] = writes.get(mount.memory_store_id, False) or not mount.read_only
    return [MemoryAccess(memory_store_id=store_id, read_only=not may) for store_id, may in writes.items()]
