"""Carry out a plan in a real training loop."""
