"""Training data: ``sources`` of images, ``loaders`` that make batches of them, and two small sets.

The sets are handwritten digits (``digit_images``) and generated pictures (``textures``). Every fault of the data is a
``data_error.DataError``. ``docs/data.md`` explains all of it.
"""
