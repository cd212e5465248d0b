"""Tests of :mod:`mixprec.monitor`."""
