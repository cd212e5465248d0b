"""Text tables with aligned columns."""


def aligned(rows, right=()):
    """Returns a line for each row of strings: columns as wide as their longest string, two spaces between them.

    Args:
        rows: tuples or lists of strings, all of the same length.
        right: indices of right-aligned columns.

    Example:
        >>> aligned([("name", "size"), ("a", "1")], right=(1,))
        ['name  size', 'a        1']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    alignments = [str.rjust if index in right else str.ljust for index in range(len(widths))]
    padded = [[align(*cell) for align, *cell in zip(alignments, row, widths, strict=True)] for row in rows]
    return ["  ".join(cells).rstrip() for cells in padded]
