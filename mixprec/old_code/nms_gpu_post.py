"""chainercv's ``utils.bbox._nms_gpu_post`` in Python: chainercv imports it at once, and calls it on a GPU."""

import numpy as np


def _nms_gpu_post(mask, n_bbox, threads_per_block, col_blocks):
    """Selects boxes in order: each box that no selected box before it suppresses.

    Args:
        mask: ``uint64`` of shape ``(n_bbox * col_blocks,)``: for each box a row of bits, set for the boxes that it
            suppresses.
        n_bbox: number of boxes.
        threads_per_block: number of bits in an element, 64.
        col_blocks: number of elements in a row.

    Returns:
        tuple: ``int32`` of shape ``(n_bbox,)``, which starts with the numbers of the selected boxes, and their count.
    """
    rows = mask.reshape(n_bbox, col_blocks)
    suppressed = np.zeros(col_blocks, np.uint64)
    selection = np.zeros(n_bbox, np.int32)
    count = 0
    for box in range(n_bbox):
        block, bit = divmod(box, threads_per_block)
        if not suppressed[block] >> np.uint64(bit) & np.uint64(1):
            selection[count] = box
            count += 1
            suppressed[block:] |= rows[box, block:]
    return selection, count
