"""Sources of images: the files on disk, checked once, as a list of images with labels.

``opening`` finds out what is there: class folders (``folders``), a list (``file_list``), or shards (``shards``, of
``tfrecord`` or ``webdataset``, which ``pack`` makes). ``scan`` and ``image_check`` look for bad images, ``classes`` for
labels that do not fit. ``progress`` has the threads and progress bars of them all.
"""
