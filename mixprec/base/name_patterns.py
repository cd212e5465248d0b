"""Error messages for name patterns that match nothing, with similar names."""

import difflib


class UnknownName(ValueError):
    """A pattern that matches no name in a model.

    Args:
        argument: name of the argument with the pattern, ``"rates"``.
        what: what has these names, ``"parameter"``.
        pattern: the pattern.
        names: all names.

    Attributes:
        what: the kind of the named objects, ``"parameter"``.
        pattern: the pattern.
        names: all names.
    """

    def __init__(self, argument, what, pattern, names):
        super().__init__(f"{argument}: {pattern!r} {no_match(what, pattern, names)}")
        self.what, self.pattern, self.names = what, pattern, names


def no_match(what, pattern, names):
    """Returns the end of a message: the pattern matches none of these names, and similar patterns.

    Args:
        what: what has these names, ``"parameter"``.
        pattern: one of :func:`fnmatch.fnmatchcase`.
        names: paths such as ``/layer1/conv/W``.
    """
    parts = dict.fromkeys(names)
    for name in names:
        folders = name.split("/")
        parts |= {"/".join([*folders[:end], "*"]): None for end in range(2, len(folders))}
    near = difflib.get_close_matches(pattern, parts, n=3, cutoff=0.6)
    if not near:
        depths = range(2, max(name.count("/") for name in names) + 1)
        folders = ([part for part in parts if part.endswith("/*") and part.count("/") == depth] for depth in depths)
        several = next((found for found in folders if len(found) > 1), list(parts))
        return f"matches no {what}; there are {', '.join(several[:5])}, ..."
    return f"matches no {what}; did you mean {' or '.join(map(repr, near))}?"
