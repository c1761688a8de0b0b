"""Checks of what takes part in a mesh on the wire, written in any language: drive it, look at the log and the world."""
