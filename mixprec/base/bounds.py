"""The largest and smallest values of settings, with reasons: for configs and for arguments in Python."""

# Counters beside the gradients are int32 on every device; so are the numbers of images in DALI's readers.
INT32 = 2**31 - 1

# Classes, each of which has a name and a row of weights. Epochs: with up to INT32 images in each, the number of images
# seen is less than 2^53, up to which a float64 counts exactly. Files in one folder.
MANY = 10**6

# Pixels: the numbers of a square image of four channels, 2^30, are counted by int32 in kernels, cuDNN and DALI.
SIDE = 2**14

# Gradients that are added up in float32, with 24 bits: the sum of this many keeps 10 bits, as many as float16 has.
SUMMANDS = 2**14

# CPU threads, and other things that take memory: prefetched batches, graphs, milestones in a list.
SEVERAL = 1024

# Seconds for work that is done once; nothing needs longer.
DAY = 24 * 60 * 60

# MiB: 1 TiB, more memory than a GPU has.
MIB = 2**20

# Learning rates, and other factors of a step. In these bounds their products, also with the ratio of two numbers of
# images, are normal float32 numbers.
SMALLEST_RATE, LARGEST_RATE = 1e-12, 10**6

# A decay closer to 1 is 1 in float32 within a few bits.
LARGEST_DECAY = 0.999999

# The largest number of float16.
HALF = 65504

# Loss scales are powers of two: in these bounds they and their reciprocals are normal float32 numbers.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**126
