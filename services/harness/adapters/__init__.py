"""The effects of a harness: the log, the model and the hands, each in its module."""
