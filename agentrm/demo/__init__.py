"""`agentrm demo`: the same agents on the same work, without agentrm and with it, measured."""
