"""Tests: folders mirror the packages of mixprec, ``stand_ins`` stands for a GPU, ``zoo`` has networks of others."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
