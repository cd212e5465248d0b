"""Images a second of training on synthetic data, a row for each way to train: the bars of NVIDIA's 2018 talk."""
