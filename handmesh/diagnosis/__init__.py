"""What became of one session, and which part of the mesh failed: from its log and the services' public answers alone.

    evidence    what was found out, as values
    timeline    events to turns, spans and marks: what happened when
    findings    what in a turn speaks of a fault
    standing    what holds the session up now
    verdict     all of it to one word: which part, and what to do
    gathering   asks a mesh

All but `gathering` is pure. Nothing that a person or a model wrote is in what is returned: names are replaced by
numbers (`names`), texts are never looked at.
"""
