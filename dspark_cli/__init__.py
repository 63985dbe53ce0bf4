"""DSpark speculative decoding for local chat."""

__version__ = "0.1.0"
