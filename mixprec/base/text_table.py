"""Tables of texts with aligned columns."""


def aligned(rows, right=()):
    """Returns a line for each row of texts: columns as wide as their longest text, two spaces between them.

    Args:
        rows: tuples or lists of texts, all of one length.
        right: which columns stand on the right.

    Example:
        >>> aligned([("name", "size"), ("a", "1")], right=(1,))
        ['name  size', 'a        1']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    alignments = [str.rjust if place in right else str.ljust for place in range(len(widths))]
    padded = [[align(*cell) for align, *cell in zip(alignments, row, widths, strict=True)] for row in rows]
    return ["  ".join(cells).rstrip() for cells in padded]
