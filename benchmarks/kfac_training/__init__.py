"""K-FAC, SGD and LARS on small data: epochs to an accuracy, and what a step costs beside it."""
