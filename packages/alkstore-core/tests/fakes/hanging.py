"""When a test is taken to hang."""

from typing import Final

__all__ = ["HUNG"]

HUNG: Final = 30.0
"""Seconds after which what has not come never comes: on a busy machine what takes moments elsewhere takes seconds, so a
test that is to show that something comes soon must leave nothing else that could bring it.
"""
