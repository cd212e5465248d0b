def product(primitives, node, x, dy):
    return primitives.linear_wgrad(x, dy)


def total(primitives, node, dy, dtype):
    return primitives.bias_grad(dy, dtype)
