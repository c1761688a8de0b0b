"""The doors of hands: what a sandbox without a network may still ask of the world, with credentials that it never sees.

The sandbox service relays each connection of a hand's door to the door listener here. The first line is a ticket of
`OpenDoor`, which says whose connection it is; what comes after it is the sandbox's own bytes.
"""
