"""Histories: what several processes or tasks called and were answered at the same time, and whether that can have been so."""
