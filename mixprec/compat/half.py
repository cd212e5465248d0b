"""Float16 values, widened."""


def widened(value):
    """``value`` in float32 if it is a float16 scalar or array of NumPy or CuPy, else unchanged."""
    return value.astype("float32") if getattr(value, "dtype", None) == "float16" else value
