"""Habits of programs in Chainer, each tried plain, wrapped and converted."""
