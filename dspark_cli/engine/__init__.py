"""The engine: token ids in, events out."""
