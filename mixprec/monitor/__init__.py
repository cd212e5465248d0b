"""The browser monitor: what a run does and what it has left, as pages."""
