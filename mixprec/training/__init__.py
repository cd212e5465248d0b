"""Training on Chainer's Trainer: the parts between a config and a finished run."""
