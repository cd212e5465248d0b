"""Images a second of training on synthetic data, a row for each way to train: the bars of the talk."""
