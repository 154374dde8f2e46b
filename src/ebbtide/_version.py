"""The version, in a module of its own so that nothing else is imported to read it."""

__version__ = "0.1.0"
