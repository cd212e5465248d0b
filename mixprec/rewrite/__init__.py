"""Rewrites a user's model for mixed precision."""

from mixprec.rewrite.convert import convert

__all__ = ["convert"]
