"""A new machine with a GPU, looked at in stages of which each has a time limit and none needs the others to succeed."""
