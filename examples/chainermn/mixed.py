"""Handwritten digits in several processes, after chainermn/examples/mnist/train_mnist.py of Chainer (MIT licence).

Run it by MPI: ``mpiexec -n 2 python examples/chainermn/plain.py``.
"""

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np
from chainer import training
from chainer.training import extensions

import mixprec
from mixprec.data.digit_images import load_digits

chainer.disable_experimental_feature_warning = True  # Chainer calls ChainerMN experimental


class MLP(chainer.Chain):
    """Three linear layers; (N, 64) pixels in float32 to (N, 10) scores."""

    def __init__(self, n_units, n_out):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(64, n_units)
            self.l2 = L.Linear(n_units, n_units)
            self.l3 = L.Linear(n_units, n_out)

    def forward(self, x):
        h = F.relu(self.l1(x))
        h = F.relu(self.l2(h))
        return self.l3(h)


def get_digits():
    """Training and test set, as ``chainer.datasets.get_mnist`` returns them; 1,500 and 297 digits of 8x8 pixels."""
    images, labels = load_digits()
    images = images.reshape(-1, 64).astype(np.float32) / 16
    digits = chainer.datasets.TupleDataset(images, labels)
    return chainer.datasets.split_dataset_random(digits, 1500, seed=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batchsize", "-b", type=int, default=50, help="images in a batch of one process")
    parser.add_argument("--epoch", "-e", type=int, default=20, help="passes over the training set")
    parser.add_argument("--unit", "-u", type=int, default=500, help="units of a hidden layer")
    parser.add_argument("--communicator", default="naive", help="a communicator of ChainerMN; on GPUs: pure_nccl")
    parser.add_argument("--device", "-d", default="@numpy", choices=("@numpy", "@cupy"), help="@cupy: a GPU for each")
    parser.add_argument("--out", "-o", default="results/chainermn", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.epoch, args.unit = 5, 100

    comm = chainermn.create_communicator(args.communicator)
    chainermn.global_except_hook.add_hook()  # an exception in one process ends all of them
    device = chainer.get_device(args.device if args.device == "@numpy" else f"@cupy:{comm.intra_rank}")
    device.use()
    np.random.seed(comm.rank)
    if comm.rank == 0:
        print(f"processes: {comm.size}")

    model = L.Classifier(MLP(args.unit, 10))
    model.to_device(device)
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.Adam(), communicator=comm)
    optimizer.setup(model)
    mixprec.convert(model)

    train, test = get_digits() if comm.rank == 0 else (None, None)  # one process reads, and sends the others their part
    train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=0)
    test = chainermn.scatter_dataset(test, comm)
    train_iter = chainer.iterators.SerialIterator(train, args.batchsize)
    test_iter = chainer.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    updater = mixprec.training.CapturedUpdater(train_iter, optimizer, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = extensions.Evaluator(test_iter, model, device=device)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
    if comm.rank == 0:  # the results of all: log, table
        trainer.extend(mixprec.training.LossScaleLog(optimizer))
        trainer.extend(extensions.LogReport())
        columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy", "loss_scale"]
        trainer.extend(extensions.PrintReport(columns))
    trainer.run()
    if comm.rank == 0:
        chainer.serializers.save_npz(f"{args.out}/model.npz", model)


if __name__ == "__main__":
    main()
