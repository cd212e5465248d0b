"""Sources of images: the files on disk, checked once, as a list of images with labels.

Reading order. ``opening`` detects the format: class folders (``folders``), a list (``file_list``), or shards
(``shards``). ``scan`` and ``image_check`` look for bad images, ``classes`` for labels that do not fit. Shards:
``shard_folder`` finds them, ``shard_index`` caches the positions of their images, ``tfrecord`` (with ``crc32c``) and
``webdataset`` read and write the formats, and ``packing`` makes shards of any source. ``progress`` has the threads and
progress bars of all.
"""
