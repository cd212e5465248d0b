"""Rewrites a user's model for mixed precision."""

from mixprec.rewrite.convert import convert, revert

__all__ = ["convert", "revert"]
