"""Wakes: placeholder until the listener is there."""
