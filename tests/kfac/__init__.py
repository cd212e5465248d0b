"""Tests of mixprec.kfac."""
