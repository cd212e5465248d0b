"""The roofline of a training step: its highest speed, from the bytes that it moves and the products that it computes.

The roofline of Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785, kernel by kernel.
"""
