"""Tests of :mod:`mixprec.app.monitor`."""
