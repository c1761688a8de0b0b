"""The mesh's own tools: what a session can do with itself, its memory, its hands and other sessions.

To the model they are tools like any other. In the log they are a hand's named `mesh`: offered by `ToolsOffered`, said
to start before they run, and settled once. Each does the same when it is asked again with the same execution id, so a
call that a dead harness had begun is simply sent again.
"""
