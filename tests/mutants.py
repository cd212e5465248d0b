"""Planted faults that the core of the tests has to find: ``python tests/mutants.py [--package P] [NAME ...]``.

Each mutant is a fault of the kind that really happens and shows nowhere: training goes on, and is worse. The
script copies the tree, plants one fault after the other, and runs what `make test` runs of the tests that are named
with it. The exit status is 1 if one survives, or if a test that failed also fails without the fault.

Mutants
-------

To add one, write a line of :data:`MUTANTS`: a name, the file below ``mixprec/``, the tests to try first below
``tests/``, the original text (a part of a line that occurs once in the file), what becomes of it, and what that would
do to a user. Then run the script with the name. If the mutant survives, look what kills it with ``-m ""``: take
the mark ``slow`` from that case, or write a small one. A mutant that changes nothing for
a user says nothing either: plant another one. CI looks whether all texts are still there (test_mutants.py).
"""

import argparse
import collections
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import hypothesis

ROOT = pathlib.Path(__file__).resolve().parents[1]
KERNELS = pathlib.Path(".pytest_cache") / "kernels"  # of tests/stand_ins/compiled.py
NATIVE = "mixprec/native"  # with the library that is compiled
LIMIT = 1200  # seconds for a run of tests; a mutant that takes longer counts as one that survives
SURVIVED = "SURVIVED"


class Mutant(NamedTuple):
    """A planted fault; see the text above."""

    name: str
    file: str
    tests: str
    original: str
    mutated: str
    harm: str

    @property
    def package(self):
        """The package of mixprec that the file is in, ``mixprec`` for a module of its own."""
        return self.file.partition("/")[0] if "/" in self.file else "mixprec"

    @property
    def path(self):
        """Path of the file in the tree."""
        return pathlib.Path("mixprec") / self.file

    def planted(self, text):
        """Returns the text of the file with the fault.

        Raises:
            ValueError: the original text does not occur exactly once.
        """
        if text.count(self.original) != 1:
            raise ValueError(f"{self.name}: {self.original!r} occurs {text.count(self.original)} times in {self.path}")
        return text.replace(self.original, self.mutated)


# Of the update's kernels; a whole file would compile all of them anew.
RULES = "optimizer/batch/test_kernels.py::test_all_rules_with_hooks_are_chainers"
CHECK = "optimizer/batch/test_kernels.py::test_one_element_that_is_not_finite_is_seen_wherever_it_is"

CAPTURED = "graph_capture/test_on_host.py graph_capture/test_parts.py graph_capture/test_odd.py"
BRIDGED = "bridge/test_calls.py bridge/test_on_host.py"
PILLOW = "data/test_pillow.py::test_"
AUGMENTED = "data/test_augmentation.py::test_"
BATCHES = "data/test_augmented_batches.py::test_"

# fmt: off
MUTANTS = [
    # backends
    Mutant("pooling-border", "backends/kernels/pooling.cu", "backends/cuda/test_pooling.py",
           "min(count, size - first)}", "min(count, size - first - 1)}", "windows at the border lose a row"),
    Mutant("biased-variance", "backends/cpu/batch_norm.py", "backends/cpu/test_batch_norm.py",
           "count / max(count - 1, 1)", "count / max(count, 1)", "running variances are biased on NumPy"),
    Mutant("native-mean-of-squares", "backends/cpu/native_batch_norm.py", "backends/cpu/test_batch_norm.py",
           "squares / (x.size // x.shape[-1])", "squares / x.size", "variances are too small"),
    Mutant("native-plus", "backends/cpu/native_batch_norm.py", "backends/native/test_native_passes.py",
           "again = _Again(dy, plus, ", "again = _Again(dy, None, ", "gradients of one branch only"),
    Mutant("native-mean-of-the-other", "backends/cpu/native_batch_norm.py", "backends/native/test_native_passes.py",
           "raw(other.x), saved[1].mean", "raw(other.x), saved[0].mean", "gradients are about the other mean"),
    Mutant("variance-between-ranks", "backends/cpu/batch_norm.py", "backends/cpu/test_batch_norm_of_ranks.py",
           "variances + (means - mean) ** 2", "variances", "means of other processes are no part of the variance"),
    Mutant("count-of-one-rank", "backends/cpu/batch_norm.py", "backends/cpu/test_batch_norm_of_ranks.py",
           "count, processes = saved.count, ranks.size", "processes = ranks.size",
           "gradients of a batch of several processes are those of one"),
    Mutant("summed-gamma", "backends/cpu/batch_norm.py", "backends/cpu/test_batch_norm_of_ranks.py",
           "dgamma / processes, dbeta / processes", "dgamma, dbeta",
           "gradients of gamma and beta grow with the number of processes"),
    Mutant("gathered-again", "backends/joint_batch.py", "backends/test_joint_batch.py",
           "if self._gathered is None:", "if True:", "a process that prints an activation waits for ever"),
    Mutant("order-of-ranks", "backends/joint_batch.py", "backends/test_joint_batch.py",
           "if (all_of_them != mine).any():", "if False:", "gradients of two batch normalizations are added up"),
    Mutant("deviation-of-ranks", "backends/kernels/batch_norm_channels.cu", "backends/cpu/test_batch_norm_of_ranks.py",
           "rows / inverse / inverse", "rows / inverse", "variances over processes on a GPU are standard deviations"),
    Mutant("slope-of-one-rank", "backends/kernels/batch_norm_channels.cu", "backends/cpu/test_batch_norm_of_ranks.py",
           "count = counts[c];", "count = counts[c] / size;",
           "gradients over processes on a GPU are those of one"),
    Mutant("statistics-count", "backends/kernels/batch_norm.cu", "backends/cuda/test_batch_norm.py",
           "const float count = all[0].count = tile.left", "const float count = all[0].count = tile.left + 1",
           "means are too small where a thread has all of its rows"),
    Mutant("parts-of-a-tile", "backends/kernels/batch_norm_rows.cuh", "backends/cuda/test_batch_norm.py",
           "gather(tile, lanes, tile.parts, 0, sets,", "gather(tile, lanes, tile.parts, 0, sets - 1,",
           "statistics of many blocks lack the last of them"),
    Mutant("running-of-all-blocks", "backends/kernels/batch_norm_rows.cuh", "backends/cuda/test_batch_norm.py",
           "tile.part == 0, center", "true, center", "running statistics move once for each block"),
    Mutant("shortcut-unrounded", "backends/kernels/batch_norm_dual.cu", "backends/cuda/test_dual_batch_norm.py",
           "narrow(add, others[r]);\n            widen(others[r], add);", "",
           "two batch normalizations at once differ from one after the other"),
    Mutant("gamma-of-the-shortcut", "backends/kernels/batch_norm_dual_backward.cu",
           "backends/cuda/test_dual_batch_norm.py", "sums[0].of[2][k])", "sums[0].of[1][k])",
           "both gammas of a pair get the gradient of one"),
    Mutant("windows-beyond-the-border", "backends/kernels/batch_norm_pooling_backward.cu",
           "backends/cuda/test_batch_norm_pooling.py", "is_there[i] ? word : 0xffffffff", "word",
           "gradients of maxima at the border count twice"),
    Mutant("maxima-in-the-padding", "backends/kernels/batch_norm_pooling.cu",
           "backends/cuda/test_batch_norm_pooling.py", "LAST - (window.y[i] - top) * 3", "LAST - i * 3",
           "maxima at the border are in the padding"),
    Mutant("column-sums", "backends/kernels/columns.cu", "backends/cuda/test_bias.py backends/cuda/test_pooling.py",
           "half >= lanes", "half > lanes", "gradients of biases have half of the rows"),
    Mutant("moments-of-padding", "backends/kernels/patches.cu", "backends/cuda/test_curvature.py",
           "0 <= y && y < height &&", "0 <= y && y <= height &&", "patches at the border have pixels of another image"),
    Mutant("indefinite-inverse", "backends/kernels/inverses.cu", "backends/cuda/test_curvature.py",
           "is_definite ? (column <= row ? matrix[i] : 0.0f)", "true ? (column <= row ? matrix[i] : 0.0f)",
           "K-FAC goes on with an inverse that is none"),
    Mutant("stale-product", "backends/cuda/matrix_context.py", "backends/cuda/test_curvature.py",
           "PLAIN), 1, 1, dtypes", "PLAIN), 1, 0, dtypes",
           "factors on a GPU are those of the last chunk of images"),
    Mutant("padding-channel", "backends/kernels/layout.cu", "backends/cuda/test_layout.py",
           "if (c + k < x_channels)", "if (c + k <= x_channels)", "the channel of zeros has pixels of another image"),
    Mutant("factors-of-other-images", "backends/kernels/batch_norm_rows.cuh", "backends/cuda/test_gpu_primitives.py",
           "(row) / static_cast<u32>(image_rows)", "(row) * 0 / static_cast<u32>(image_rows)",
           "all images of a batch are dropped, or none"),
    Mutant("gradients-of-dropped-images", "backends/kernels/batch_norm_backward.cu",
           "backends/cuda/test_gpu_primitives.py",
           "if constexpr (FACTORS) multiply(factor_of(factors, some.at(r), image_rows), result);", "",
           "dropped images have gradients on a GPU"),
    Mutant("dropout-repeats", "backends/kernels/dropout.cu", "backends/cuda/test_dropout.py",
           "state[1] = sequence + 1", "state[1] = sequence", "dropout takes the same elements in each step"),
    Mutant("top5", "backends/cpu/matrices.py", "functions/test_accuracy.py",
           "axis=1) <= top", "axis=1) < top", "the top-5 accuracy is that of the top 4"),
    Mutant("accuracy-ties", "backends/kernels/loss.cu", "backends/cuda/test_loss.py",
           "logit == own[0] && c < label", "logit == own[0] && c <= label", "no label is right on a GPU"),
    Mutant("stem-columns", "backends/kernels/stem.cu", "backends/cuda/test_stem.py",
           "place % 2 - across.before", "place % 2", "first convolutions have filters that are shifted by a column"),
    Mutant("smoothing-loss", "backends/kernels/loss.cu", "backends/cpu/test_loss.py",
           "smoothing / classes) * (distances", "smoothing / (classes - 1)) * (distances",
           "label smoothing is too large by K / (K - 1)"),
    Mutant("smoothing-gradient", "backends/cpu/matrices.py", "backends/cpu/test_loss.py",
           "np.float32(smoothing / classes) * weights", "np.float32(smoothing / (classes - 1)) * weights",
           "the gradient is of another smoothing than the loss"),
    Mutant("inverse-of-infinity", "backends/cpu/second_moments.py", "backends/cpu/test_second_moments.py",
           "if not np.isfinite(np.tril(shifted)).all():", "if False:",
           "a step that overflows makes weights stand still"),
    Mutant("pointwise-padding", "backends/cpu/convolution.py", "backends/cpu/test_convolution.py",
           "filter_size == (1, 1) and convolution.pad == (0, 0)", "filter_size == (1, 1)",
           "a 1x1 convolution forgets its padding"),
    Mutant("wrong-engine", "backends/cudnn/agreement.py", "backends/cudnn/test_search.py",
           "if largest > _RELATIVE * scale", "if largest > scale", "an engine of cuDNN that is wrong is chosen"),
    Mutant("moved-twice", "backends/cudnn/plans.py", "backends/cudnn/test_search.py",
           "if unlike or largest > _APART * scale:", "if unlike:", "running statistics move twice in a step"),
    Mutant("blamed-engine", "backends/cudnn/autotune.py", "backends/cudnn/test_search.py",
           "device.synchronize()  # earlier", "pass  # earlier", "an engine is never used again for another's fault"),
    Mutant("another-kernel", "backends/stored.py", "backends/test_launch.py",
           'key.encode() + b"\\0" + content', "content", "a file in a wrong place is run as another kernel"),
    Mutant("small-float16", "backends/cpu/blocks.py", "backends/cpu/test_half.py",
           "np.full(size, 2.0**-14,", "np.full(size, 2.0**-13,", "small gradients lose their last bit"),
    # distributed
    Mutant("uses-of-a-parameter", "distributed/readiness.py", "distributed/test_readiness.py",
           "self._left.get(x, 0) + 1", "1", "gradients of layers that are used twice are sent when half is there"),
    Mutant("share-of-a-rank", "distributed/arena.py", "distributed/test_exchange.py",
           "pack(gradient, self.share,", "pack(gradient, 1,", "the sum takes the place of the mean"),
    Mutant("sent-unasked", "distributed/exchange.py", "distributed/test_ranks.py",
           "elif not self._check.is_agreed():", "elif False:", "gradients of different models are added up"),
    Mutant("gradients-of-others", "distributed/exchange.py", "distributed/test_exchange.py",
           "return gradient.copy()", "return gradient",
           "a parameter that was given the gradient of another one trains with a part of it"),
    Mutant("updates-of-ranks", "distributed/same_models.py", "distributed/test_same_models.py",
           "(self._number + updates)", "self._number", "ranks train on when an update has failed on one of them"),
    Mutant("order-of-buckets", "distributed/buckets.py", "distributed/test_buckets.py",
           "positions[bucket.names[-1]]", "places[bucket.names[0]]", "buckets that are ready wait for others"),
    Mutant("halves-in-halves", "distributed/mpi_transport.py", "distributed/test_mpi_transport.py",
           "some.astype(np.float32) + others.astype(np.float32)", "others", "each rank trains with its own gradients"),
    Mutant("order-of-nccl", "distributed/exchange.py", "distributed/test_nccl.py",
           "if self.transport.shares_order:", "if False:", "NCCL is asked in another order on each rank, and hangs"),
    Mutant("gradients-held", "distributed/device_arena.py", "distributed/test_nccl.py",
           "self._pack(bucket.names, gradients), held", "self._pack(bucket.names, gradients), ()",
           "memory of a gradient goes to another array before NCCL's stream has read it"),
    Mutant("second-stream-of-gradients", "backends/nccl.py", "backends/test_nccl.py",
           "self._stream.wait_event(last)", "pass", "gradients are sent that the second stream still computes"),
    Mutant("nccl-is-kept", "backends/nccl.py", "backends/test_nccl.py",
           "ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._comm))", "pass", "Python ends and waits for a graph"),
    Mutant("sums-forgotten", "distributed/mpi_transport.py", "distributed/test_mpi_transport.py",
           "self.progress()  #", "pass  #", "arrays of sums are held for ever"),
    Mutant("rows-of-a-bucket", "backends/kernels/pack.cu", "distributed/test_device_arena.py",
           "first_block <= blockIdx.x", "first_block < blockIdx.x", "gradients are packed in the place of others"),
    Mutant("scale-of-the-step", "optimizer/ranks.py", "distributed/test_nccl.py",
           "if factor is passes.factor:", "if False:", "every step waits for the device, to read the scale"),
    Mutant("scale-of-others", "optimizer/ranks.py", "distributed/test_ranks.py",
           "elif sums[number] != counts[number] * own[number]:", "elif False:",
           "gradients of different loss scales are averaged"),
    # update
    Mutant("skipped-steps-count", "optimizer/batch/kernels/update.cu", RULES,
           "if (!skips) *applied += 1;", "*applied += 1;", "Adam's t counts skipped steps"),
    Mutant("last-statistic", "optimizer/batch/kernels/update.cu", "optimizer/test_on_device.py",
           "blockIdx.x < chunk_count + restore_count", "blockIdx.x + 1 < chunk_count + restore_count",
           "a skipped step spoils the last running statistic"),
    Mutant("overflow-of-a-thread", "optimizer/batch/kernels/check.cu", CHECK,
           "if (__syncthreads_or(!finite) && threadIdx.x == 0) *found", "if (!finite && threadIdx.x == 0) *found",
           "most overflows are not seen on a GPU"),
    Mutant("hooks-overflow", "optimizer/batch/native_group.py", "optimizer/batch/test_odd.py",
           "return bool(self._found & _FINITE_AFTER_HOOKS)", "return True",
           "a hook's inf reaches the weights on NumPy"),
    Mutant("average-decay-cuda", "optimizer/batch/kernels/average.cu", "training/test_averaging.py",
           "min(decay,", "max(decay,", "averaged weights stay near the first ones"),
    Mutant("decay-of-biases", "optimizer/batch/update_plan.py",
           "optimizer/batch/test_no_decay.py app/parts/test_parts.py",
           "if master.no_decay:", "if False:", "weight decay pulls at biases and normalizations"),
    Mutant("momentum-sign", "optimizer/rules/momentum.py", RULES,
           "param += lr * v;", "param -= lr * v;", "the default optimizer goes uphill on a GPU"),
    Mutant("gradient-of-a-neighbour", "optimizer/batch/native_group.py", "optimizer/batch/test_batched.py",
           "return operator.itemgetter(*numbers)", "return operator.itemgetter(*sorted(numbers, reverse=True))",
           "parameters get the gradients of others where rules differ"),
    Mutant("bias-correction", "optimizer/batch/native_group.py", "optimizer/batch/test_batched.py",
           "self._rules[0].t + 1)", "max(self._rules[0].t, 1))", "Adam corrects the bias of the step before"),
    Mutant("clipping-by-layer", "optimizer/rules/hook_formulas.py", RULES,
           'norms="all",', 'norms="each",', "each gradient is clipped by its own norm"),
    # optimizer
    Mutant("unscaled-twice", "optimizer/gradients.py", "optimizer/test_wrapper.py",
           "out *= _inverse(factor, param.device, inverses)", "out *= _inverse(factor, param.device, inverses) ** 2",
           "gradients are divided by the square of the scale, and weights hardly move"),
    Mutant("scale-of-one", "optimizer/host_form.py", "optimizer/test_wrapper.py",
           "return 1 / number if number else math.inf", "return 1.0", "weights move by scaled gradients"),
    Mutant("masters-rounded", "optimizer/masters.py", "optimizer/test_bfloat16.py",
           "master.xp.where(where, param.array.astype(np.float32), master.array)", "param.array.astype(np.float32)",
           "who writes one weight rounds all masters"),
    Mutant("lazy-variance", "optimizer/running_statistics.py", "optimizer/test_wrapper.py",
           '"avg_var": 1.0}', '"avg_var": 0.0}', "a first step that is skipped leaves variances of 0"),
    Mutant("finetune-count", "optimizer/running_statistics.py", "optimizer/test_odd.py",
           "elif _moved(now, value) and to_host(skipped):", "elif False:", "skipped steps count in fine-tuning"),
    Mutant("t-of-skipped", "optimizer/fallback_form.py", "optimizer/test_bfloat16.py",
           "owner.t -= skipped", "owner.t -= 0 * skipped", "t counts skipped steps on a device"),
    Mutant("rollback", "optimizer/fallback_form.py", "optimizer/test_bfloat16.py",
           "restore(array, before, skip, now=master.array)", "array[...] = master.array",
           "weights become NaN in a step that overflows"),
    Mutant("two-scales", "precision/grad_scales.py", "optimizer/test_wrapper.py",
           "if scale is MIXED or not _same(factor_of(scale), factor_of(other)):", "if scale is MIXED:",
           "a sum of gradients of two scales is divided by the last one"),
    Mutant("patience", "optimizer/overflow_watchdog.py", "optimizer/test_diverged.py",
           "if in_row >= self._scaler.patience:", "if in_row > self._scaler.patience:", "a dead run ends a step late"),
    Mutant("old-rate", "graph_capture/graph_step.py", "graph_capture/test_on_host.py",
           "self._table.refresh()", "self._table", "a captured step keeps the learning rate of its capture"),
    # kfac
    Mutant("gradients-of-the-mean", "kfac/layers.py", "kfac/test_layers.py",
           "images * images / positions * unscale", "images / positions * unscale",
           "the curvature shrinks as the batch grows"),
    Mutant("first-average", "kfac/layers.py", "kfac/test_layers.py",
           "np.float32(1 - decay), np.float32(1))", "np.float32(1 - decay), np.float32(1 - decay))",
           "steps are too long at first"),
    Mutant("kept-overflow", "kfac/layers.py", "kfac/test_scales.py",
           "            if not skip:", "            if True:", "averages have inf from the first overflow on"),
    Mutant("scaled-curvature", "kfac/sharing.py", "kfac/test_scales.py",
           "unscale * inverse * inverse", "unscale * inverse", "the loss scale is a part of the curvature"),
    Mutant("lost-refresh", "kfac/refreshes.py", "kfac/test_refreshes.py",
           "if skipped.value:", "if False:", "inverses stay old for a whole period after an overflow"),
    Mutant("images-of-two-uses", "kfac/collector.py", "kfac/test_participation.py",
           "is_first = name not in self._used", "is_first = True",
           "a layer that is used twice counts its images twice"),
    Mutant("square-of-the-rate", "kfac/multiplication.py", "kfac/test_loops.py",
           'numbers["lr"] * numbers["lr"] * sum(products)', 'numbers["lr"] * sum(products)',
           "the limit of a step is another one at each learning rate"),
    # mixprec
    Mutant("scale-late", "precision/loss_scale.py", "test_loss_scale.py",
           "full = clean + 1 == interval", "full = clean == interval", "the scale grows a step late"),
    Mutant("hysteresis", "precision/loss_scale.py", "test_loss_scale.py",
           "at_least(hysteresis_left - 1, 0)", "0", "one overflow lowers the scale, whatever the hysteresis"),
    Mutant("lost-counter", "precision/step_state.py", "test_loss_scale.py optimizer/test_snapshots.py",
           "self._set(**state)", "self._set(**{**state, 'clean': 0})",
           "after a resume the scale grows later"),
    Mutant("not-atomic", "base/files.py", "app/parts/test_parts.py",
           "            os.close(handle)",
           "            os.close(handle), os.remove(temporary)\n            temporary = path",
           "a kill while a snapshot is written destroys the one before"),
    # training
    Mutant("warmup", "training/schedule.py", "training/test_schedule.py",
           "(epoch + iteration_epochs) / warmup", "epoch / warmup",
           "the first step has a rate of 0, and the warm-up is one step behind"),
    Mutant("milestone", "training/schedule.py", "training/test_schedule.py",
           "epoch >= milestone", "epoch > milestone", "the rate falls a step late"),
    Mutant("average-of-skipped", "training/averaging.py", "training/test_averaging.py",
           "self._average.update(skip_flag(self._optimizer))", "self._average.update(np.bool_(False))",
           "skipped steps move the averages"),
    Mutant("accumulated-mean", "training/accumulation.py", "training/test_accumulation.py",
           "counts = list(map(valid_images, batches))", "counts = [1] * len(batches)",
           "the last, smaller batch has too much weight"),
    Mutant("evaluation-padding", "training/evaluation.py", "training/test_evaluation.py",
           "images = valid_images(arrays)", "images = len(arrays[0])", "padding counts in the accuracy"),
    Mutant("rank-alone", "training/accumulation.py", "app/run/test_ranks.py",
           "total if images is None else images", "total", "ranks with few images count as full"),
    Mutant("rank-evaluation", "training/log_report.py", "app/run/test_ranks.py",
           "sum(weights[1:], weights[0])", "weights[0] * len(weights)", "each rank's accuracy counts the same"),
    Mutant("rank-statistics", "optimizer/batch/saved_arrays.py", "app/run/test_ranks.py",
           "        for array, value in before:", "        for array, value in ():",
           "a run that was stopped goes on with other running statistics"),
    Mutant("rank-states", "app/parts/rank_states.py", "app/run/test_ranks.py",
           'prefix = f"{_PREFIX}{ranks.rank}/"', 'prefix = f"{_PREFIX}0/"', "all ranks go on with one dropout"),
    Mutant("one-gpu-for-two", "app/parts/devices.py", "app/run/test_ranks.py",
           "if first != rank:", "if False:", "two ranks with one GPU hang in NCCL"),
    Mutant("threads-of-a-container", "base/process_limits.py", "native/test_threads.py",
           "min(_cores(root), _quota(root))", "_cores(root)",
           "a container with little processor time gets a thread for each core of the machine"),
    Mutant("threads-of-the-user", "base/process_limits.py", "native/test_threads.py",
           "if wanted.isdecimal() and int(wanted) > 0:", "if False:", "OMP_NUM_THREADS is not respected"),
    Mutant("stale-library", "native/native_library.py", "native/test_library.py",
           "if sources.digest() not in (None, _library.sources()):", "if False:",
           "a library of other sources is called with other arguments"),
    # export
    Mutant("folded-shift", "export/folding.py", "export/test_onnx_file.py",
           "shift = beta - mean * scale", "shift = beta - mean", "folded normalizations have another shift"),
    Mutant("end-of-transposed", "export/converters.py", "export/test_onnx_file.py",
           "ends.append(max(end, 0))", "ends.append(0)", "outputs of transposed convolutions are too large"),
    Mutant("tolerance", "export/onnx_file.py", "export/test_onnx_file.py",
           "_TOLERANCE = 1e-4", "_TOLERANCE = np.inf", "a graph that computes something else is handed over"),
    Mutant("limit", "app/finished/check.py", "app/finished/test_export_command.py",
           "self.drop <= self.limit + 1e-9", "True", "a file that has lost its accuracy is handed over"),
    Mutant("equal", "app/finished/check.py", "app/finished/test_check.py",
           "(found == wanted.argmax(1)).sum()", "(found >= 0).sum()", "all predictions seem to be equal"),
    Mutant("some-images", "app/finished/finished_run.py", "app/finished/test_export_command.py",
           "(len(source))[:count])", "(len(source)))", "--val-images is not respected"),
    # activation_memory
    Mutant("unwaited-copy-out", "activation_memory/buffers.py", "activation_memory/test_offloading_on_device.py",
           "self._copies.wait(self._leaving)", "pass", "memory is given back while it is still being copied away"),
    Mutant("statistics-of-the-second-call", "functions/batch_normalization.py", "activation_memory/test_retained.py",
           "self.statistics = None  #", "pass  #", "running statistics move with each array computed again"),
    Mutant("places-left-out", "activation_memory/retained.py", "activation_memory/test_retained.py",
           "isinstance(value, (tuple, list)):", "isinstance(value, list):", "masks of batch normalizations never move"),
    Mutant("budget-in-gib", "activation_memory/budget.py", "activation_memory/test_budget.py",
           "1000 ** (power + 1)", "1024 ** (power + 1)", "a budget in GB is 7 % more than it says"),
    Mutant("random-twice", "activation_memory/repeatable_call.py", "activation_memory/test_recomputation.py",
           "np.random.set_state(", "(lambda state: None)(", "dropout in a recomputed block has other zeros then"),
    # monitor
    Mutant("log-that-is-cut", "app/monitor/log.py", "app/monitor/test_log.py",
           "if file.read(len(self._tail)) != self._tail:", "if self._end > os.fstat(file.fileno()).st_size:",
           "entries of before a resume stay in the curves"),
    Mutant("any-cookie", "app/monitor/access.py", "app/monitor/test_access.py",
           'hmac.compare_digest(value.encode("latin-1"), self._cookie)', "bool(value)", "any cookie opens the pages"),
    Mutant("token-of-all", "app/monitor/access_token.py", "app/monitor/test_access_token.py",
           "os.fchmod(folder, 0o700)", "pass", "others read the token in a folder that was there"),
    Mutant("half-open", "app/monitor/connections.py", "app/monitor/test_connections.py",
           "if len(held) > self._most[part]:", "if False:", "half-open connections take all descriptors"),
    Mutant("another-site", "app/monitor/access.py", "app/monitor/test_access.py",
           'headers.get("origin", f"http://{host}").lower() not in', '"" in', "a page of another site reads the pages"),
    Mutant("taken-process", "app/monitor/jobs.py", "app/monitor/test_jobs.py",
           "not is_alive(status)", "status.get('pid') is None", "a process that has the number by now is ended"),
    Mutant("peaks", "app/monitor/log.py", "app/monitor/test_log.py",
           "stretch.index(max(finite))}", "0}", "a long curve loses its peaks"),
    Mutant("worst-images", "app/finished/predictions.py", "app/monitor/work/test_evaluate.py",
           "np.argsort(-np.nan_to_num(", "np.argsort(np.nan_to_num(", "the best images are listed as the worst"),
    Mutant("confusion-turned", "app/finished/predictions.py", "app/monitor/work/test_evaluate.py",
           "pairs = self._labels * self._classes + self._found", "pairs = self._found * self._classes + self._labels",
           "rows of the confusion matrix are predictions"),
    Mutant("pixels-of-an-upload", "app/monitor/work/uploaded_image.py", "app/monitor/work/test_inside.py",
           "if width * height > _PIXELS:", "if False:", "a picture of any size is decoded"),
    Mutant("text-of-a-child", "app/monitor/work/serving.py", "app/monitor/work/test_serving.py",
           "os.dup2(2, 1)", "pass", "what a library prints stands among the lines of JSON"),
    Mutant("weights-elsewhere", "app/monitor/work/opened.py", "app/monitor/work/test_evaluate.py",
           "os.path.basename(name) != name or ", "", "a request names any file of the machine"),
    Mutant("gpu-of-rank", "app/parts/gpus.py", "test_environment.py",
           "index = local_rank % max(count, 1) if", "index = 0 if", "all ranks of a machine take its first GPU"),
    Mutant("mpi-duplicates", "backends/mpi_duplicates.py", "backends/test_joint_batch.py",
           "    if key not in _duplicates:", "    if True:", "MPI has no communicators left after some optimizers"),
    Mutant("memory-of-ranks", "app/parts/estimate.py", "app/parts/test_estimate.py",
           "self.needed * self.sharing <=", "self.needed <=", "ranks that share a host are counted once"),
    Mutant("rank-refused", "distributed/processes.py", "app/run/test_ranks.py",
           "found = self._comm.allgather(problem)", "found = [problem]", "bad input on one rank hangs the others"),
    Mutant("lock-not-held", "app/run/lock.py", "app/run/test_lock.py",
           "        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)",
           "        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)", "two runs write into one folder"),
    Mutant("other-settings", "app/parts/snapshot_settings.py", "app/run/test_resume.py",
           "if then.get(key) != now.get(key)}", "if False}",
           "a run goes on with other settings in silence"),
    Mutant("surplus-parameters", "training/snapshots.py", "app/run/test_resume.py",
           "    if surplus:", "    if False:", "a deeper network's snapshot resumes a shallower one"),
    Mutant("later-gradients", "training/gradient_log.py", "training/test_gradient_log.py",
           "self._last < found <= iteration", "self._last < found",
           "a resumed run shows gradients of steps that it has not made"),
    Mutant("killed-or-stopped", "training/heartbeat.py", "training/test_heartbeat.py",
           "        except BaseException as error:", "        except Exception as error:",
           "a run that was interrupted looks like one that was killed"),
    Mutant("late-snapshot", "training/stopping.py", "app/run/test_failures.py",
           "extension.make_extension(is_due,", "extension.make_extension(lambda trainer: False,",
           "an evaluation that fails takes its epoch along"),
    Mutant("another-rule", "optimizer/rule_states.py", "optimizer/test_snapshots.py",
           "!= here:", "!= here and False:", "the velocity of one rule is taken for that of another"),
    Mutant("newest-snapshot", "training/snapshots.py", "app/parts/test_parts.py",
           "max(iterations))", "max(iterations, key=str))", "a run goes on from snapshot 900, not 1000"),
    Mutant("throughput", "training/updater.py", "app/parts/test_parts.py",
           "self._since = (epoch, seconds)", "self._since = (epoch, 0.0)", "the log's images/s fall with time"),
    # config
    Mutant("bound", "base/declaration.py", "app/config",
           "all(low <= number <= high", "all(low < number <= high", "batches of one image are refused"),
    Mutant("momentum-of-others", "app/config/schema.py", "app/config",
           "others(config) in values", "True", "a momentum without effect is taken in silence"),
    Mutant("first-override", "app/config/loader.py", "app/config",
           "for override in overrides:", "for override in reversed(overrides):", "the first --set wins"),
    Mutant("unknown-key", "app/config/loader.py", "app/config",
           "raise _unknown_key(name, entry.where, known)", "continue", "a misspelled key has no effect"),
    # data
    Mutant("box-beyond-the-image", "data/mixing.py", "data/test_mixing.py",
           "max(centre - half, 0), min", "centre - half, min", "a box of CutMix at the edge is none"),
    Mutant("share-of-what-was-drawn", "data/mixing.py", "data/test_mixing.py",
           "np.float32(1 - covered)", "np.float32(share)", "labels have another share than pixels"),
    Mutant("second-label-left-out", "backends/cpu/matrices.py", "backends/cpu/test_loss.py",
           "np.where(counted, second, 0)", "np.where(counted, t, 0)", "mixed images have one label"),
    Mutant("stage-begins-with-the-old-order", "data/loaders/epochs.py", "data/test_epochs.py",
           "return self.epochs_before + epoch, batch", "return epoch, batch",
           "a stage of training shows images in the order of the first epochs again"),
    Mutant("stage-of-the-last-batch", "data/loaders/staged.py", "data/test_pillow.py",
           "wanted = self._epochs.of(self._delivered)", "wanted = self.stage",
           "the first batch of a stage has the size of the one before"),
    Mutant("batches-of-the-last-stage-freed", "data/loaders/dali.py", "data/test_device.py",
           "            self._on_device.finish()", "            pass",
           "a GPU reads the last batch of a stage while DALI writes into its memory"),
    Mutant("settings-of-an-earlier-version", "app/parts/snapshot_settings.py", "app/run/test_resume.py",
           "configs.defaults() | _settings(path)", "_settings(path)", "snapshots of the version before are refused"),
    Mutant("frozen-layers-keep-activations", "functions/node.py", "optimizer/test_part_rates.py",
           "(needed or not any(isinstance(x, chainer.Parameter) for x in variables))", "True",
           "frozen layers keep what no backward pass wants"),
    Mutant("stage-rate", "app/parts/rates.py", "training/test_schedule.py",
           "stage.batch_size / config.training.batch_size", "config.training.batch_size / stage.batch_size",
           "stages with large batches train with a small rate"),
    Mutant("rate-by-epoch", "training/schedule.py", "training/test_schedule.py",
           'math.floor(epoch) if self.settings.by == "epoch"', 'math.ceil(epoch) if self.settings.by == "epoch"',
           "the rate is that of the next epoch"),
    Mutant("old-graphs-stay", "training/updater.py", "training/test_mixed_training.py",
           "self.step.reset()", "self.step.why_not = None", "graphs of earlier stages keep their memory"),
    Mutant("operations-of-one-place", "data/loaders/random_policies.py", "data/test_augmentation.py",
           "epoch, COUNTER, position))", "epoch, COUNTER, 0))", "all images of an epoch get the same operations"),
    Mutant("shear-the-other-way", "data/loaders/operations/warps.py", "data/test_augmentation.py",
           "0.0, other, own, always)", "0.0, -other, own, always)", "vertical shears have the other direction"),
    Mutant("translation-by-its-bin", "data/loaders/operations/warps.py", "data/test_augmentation.py",
           "(150 * size, 331)", "(150, 1)", "translations do not follow the size of the image"),
    Mutant("probability-of-operations", "data/loaders/random_policies.py", "data/test_augmentation.py",
           "skipped >= settings.augment_probability", "skipped < settings.augment_probability",
           "an operation is left out with its probability"),
    Mutant("dali-equalizes-as-opencv", "data/loaders/operations/levels.py",
           AUGMENTED + "operations_of_dali_are_those_of_pillow",
           "equalize(white - pixels)))", "equalize(pixels)))", "DALI equalizes to other colours than Pillow"),
    Mutant("resumed-operations", "data/loaders/augmentation.py",
           BATCHES + "each_place_of_an_epoch_has_its_operations",
           "self._first + iteration", "iteration", "a run that goes on repeats the augmentation of the first batches"),
    Mutant("operations-of-batches-left-out", "data/loaders/dali.py",
           BATCHES + "each_place_of_an_epoch_has_its_operations",
           "epoch * self._made_per_epoch + batch", "self._delivered",
           "a run that goes on with last_batch drop has other operations"),
    Mutant("wide-erased-boxes", "data/loaders/uniforms.py", "data/test_augmentation.py",
           "math.sqrt(area * ratio)", "math.sqrt(area / ratio)", "erased rectangles are squares"),
    Mutant("copies-apart", "data/loaders/order.py",
           BATCHES + "places_of_an_epoch_have_copies_one_behind_the_other",
           "// self._spec.augmentation.repeats", "% (self._images // self._spec.augmentation.repeats)",
           "copies of an image lie in other batches"),
    Mutant("same-crops-of-copies", "data/loaders/pillow_worker.py",
           BATCHES + "copies_of_an_image_are_augmented_each_by_itself",
           "copy = position % spec.augmentation.repeats", "copy = 0", "copies of an image are the same picture"),
    Mutant("shards", "data/loaders/epochs.py", "data/test_epochs.py",
           "(count * shard // self.num_shards", "(count // self.num_shards * shard",
           "processes read some images twice, and others never"),
    Mutant("last-batch", "data/loaders/epochs.py", "data/test_epochs.py",
           'rest > 0 and self.last_batch != "drop"', 'rest > 0 and self.last_batch == "pad"',
           "the last images are never seen"),
    Mutant("other-ranks", "data/loaders/epochs.py", "data/test_epochs.py",
           "None if rest else self.begin", "self.begin", "a run that goes on with other ranks leaves images out"),
    Mutant("resumed-batch", "data/loaders/iterator.py", PILLOW + "loading_a_snapshot_goes_on_bit_for_bit",
           'serializer("delivered", self._delivered)', 'serializer("delivered", self._delivered + 1)',
           "a resumed run leaves out a batch"),
    Mutant("crop-range", "data/loaders/pillow_worker.py", PILLOW + "a_random_crop_is_at_each_place_equally_often",
           "int(x * (width - w + 1))", "int(x * (width - w))", "crops never reach the right border"),
    Mutant("old-index", "data/sources/shard_index.py", "data/test_shards.py",
           " {status.st_mtime_ns} {path}", " {path}", "a shard that was packed anew has its old labels"),
    # functions
    Mutant("moved-statistics", "functions/batch_normalization.py", "functions/test_batch_normalization.py",
           "tuple(array.copy() for array in self.statistics)", "self.statistics",
           "gradients are of statistics that have moved since"),
    Mutant("dropout-gradient", "functions/dropout.py", "functions/test_dropout.py",
           "dropout(dy, self._ratio, self._key)", "dropout_next(primitives, dy, self._ratio)[0]",
           "gradients are dropped elsewhere than activations"),
    Mutant("rows-dropped-anew", "functions/stochastic_depth.py", "functions/test_stochastic_depth.py",
           "scale_rows(dy, self._factors)", "scale_rows(dy, row_factors(dy, self.ratio))",
           "gradients are of other images than those that were dropped"),
    Mutant("factors-in-evaluation", "functions/stochastic_depth.py", "functions/test_stochastic_depth.py",
           "if not chainer.config.train or not ratio:", "if not ratio:", "images are dropped in validation"),
    Mutant("curvature-of-dropped-images", "functions/batch_normalization.py", "kfac/test_layers.py",
           "dadd = primitives.scale_rows(dadd, self.factors)", "pass",
           "the curvature of a batch normalization counts images that were dropped"),
    Mutant("factors-of-the-shortcut", "backends/cpu/batch_norm.py", "backends/cpu/test_batch_norm.py",
           "affine.scale * factor, affine.bias * factor", "affine.scale * factor, affine.bias",
           "a dropped image keeps the bias of its branch"),
    Mutant("factors-of-sums", "backends/cpu/batch_norm.py", "backends/cpu/test_batch_norm.py",
           "dbeta += factor * sums", "dbeta += sums", "gradients of beta count images that were dropped"),
    Mutant("rounded-gamma", "functions/widening.py", "functions/test_widening.py",
           "bn.BatchNormalizationGrad: (0, 1, 1)", "bn.BatchNormalizationGrad: (0, 0, 0)",
           "the gradient of gamma is rounded to float16"),
    Mutant("one-branch", "functions/batch_normalization.py", "kfac/test_layers.py",
           "dadd = dy if plus is None else primitives.add(dy, plus)", "dadd = dy",
           "the curvature is that of one branch only"),
    # links
    Mutant("recomputed", "links/batch_normalization.py", "links/test_batch_normalization.py",
           "if chainer.config.in_recomputing:", "if False:", "F.forget counts each batch twice"),
    Mutant("float16-file", "precision/storage.py", "links/test_files.py",
           "_float32(value) if _is_floating(value) else value", "value", "files of weights are in float16"),
    Mutant("batch-axes", "links/linear.py", "links",
           "math.prod(x.shape[n_batch_axes:])", "math.prod(x.shape[1:])", "weights are made for other inputs"),
    Mutant("finetune-decay", "links/batch_normalization.py", "links/test_batch_normalization.py",
           "decay = 1 - 1 / self.N", "decay = 1 - 1 / (self.N + 1)", "fine-tuned statistics keep the old ones"),
    # rewrite
    Mutant("half-statistics", "rewrite/parameters.py", "rewrite/test_convert.py",
           "_cast_statistics(link, state.before, np.float32)", "_cast_statistics(link, state.before, np.float16)",
           "running statistics stay in float16"),
    Mutant("one-of-two-terms", "functions/sums.py", "functions/test_sums.py",
           "return [term.array for term in self._terms]", "return [self._terms[0].array]",
           "a batch normalization behind which a network branches gets the gradient of one branch"),
    Mutant("sum-nobody-took", "functions/sums.py", "functions/test_sums.py",
           "self._load_if_new and ", "", "chainer.grad gives the first term of a sum"),
    Mutant("fused-without-factors", "rewrite/deferred.py", "rewrite/test_fused_stochastic_depth.py",
           'compute(fusion.name, add, operands.get("StochasticDepth"))', "compute(fusion.name, add)",
           "a fused block drops no image"),
    Mutant("unfused-without-factors", "rewrite/deferred.py", "rewrite/test_fused_stochastic_depth.py",
           "_scaled(variable, node.factors) if operand is None", "variable if operand is None",
           "gradients of a block that is looked at are those of all images"),
    Mutant("other-branch-first", "rewrite/layer_rules.py", "rewrite/test_fused_stochastic_depth.py",
           "or (type(other) is Deferred and other.chain)", "",
           "a projection is fused in the place of the branch with stochastic depth, which takes two passes more"),
    Mutant("pooled-twice", "rewrite/between_layers.py", "rewrite/test_joined.py",
           "can_follow(x, name) and not x.normalization.counted", "can_follow(x, name)",
           "a second pooling of a ReLU takes gradients of what lies between away from the first"),
    Mutant("part-of-what-has-left", "functions/node.py", "rewrite/test_joined_networks.py",
           "if OFFLOADED in vars(node):", "if False:", "what has been taken apart goes backward without its arrays"),
    Mutant("ranks-behind", "rewrite/joined.py", "rewrite/test_joined.py",
           "x._rank = min(x.rank, last.rank)", "pass", "what is put between later goes backward too early"),
    Mutant("counted-twice", "rewrite/fusions.py", "rewrite/test_fusion.py",
           "add is not None, not self.counted, factors)", "add is not None, True, factors)",
           "statistics move twice in a step"),
    Mutant("sums-of-another-array", "rewrite/layer_rules.py", "rewrite/test_sums.py",
           "self._variable() is x and self._array() is x.array", "self._variable() is x",
           "a normalization takes the sums of an array that is not its input any more"),
    Mutant("sums-once-taken", "rewrite/layer_rules.py", "rewrite/test_sums.py",
           "following, site.following = site.following, None", "following = site.following",
           "sums are taken for ever, whatever follows"),
    Mutant("fused-though-used", "rewrite/fusions.py", "rewrite/test_fusion.py",
           "self._site.give_up(why)", "pass", "what is used twice is computed twice in every step"),
    Mutant("reverted", "rewrite/convert.py", "rewrite/test_chainer.py::test_revert_gives_the_plain_model_back",
           "set_state(link, None)", "pass", "a reverted model goes on in float16"),
    Mutant("float16-sum", "rewrite/dtype_table.py", "rewrite/test_dtype_table.py",
           '"ScatterAdd", "Sum", ', '"ScatterAdd", ', "sums overflow at 65504"),
    Mutant("gradient-sum", "functions/widening.py", "rewrite/test_dtype_table.py",
           "x.astype(np.float32) if x.dtype == np.float16 else x for x in inputs", "x for x in inputs",
           "the gradient of a slice is added up in float16"),
    Mutant("local-statistics", "rewrite/layer_rules.py", "rewrite/test_odd.py",
           "if not is_chainers:", "if False:", "ChainerMN's batch normalization becomes a local one"),
    Mutant("hooks-of-ranks", "compat/multi_node.py", "compat/test_link_hooks.py",
           "hook.forward_preprocess(before)", "pass", "link hooks miss batch normalizations of ranks"),
    Mutant("ranks-forgotten", "rewrite/layer_rules.py", "rewrite/test_multi_node.py",
           "BatchNorm(eps, decay, relu), running if count else None, sums, ranks, factors)",
           "BatchNorm(eps, decay, relu), running if count else None, sums)",
           "ChainerMN's batch normalization becomes a local one, and the report says it is not"),
    Mutant("average-padding", "rewrite/between_layers.py", "rewrite/test_odd.py",
           "is None and any(geometry.pad)", "is ...", "padding counts in averages without it"),
    Mutant("cover-all", "rewrite/between_layers.py", "rewrite/test_odd.py",
           "pooling_of(node, node.cover_all)", "pooling_of(node)", "max pooling loses its last windows"),
    Mutant("repeated-forward", "rewrite/outside.py", "rewrite/test_outside.py",
           " and active.backward == chainer.config.enable_backprop", "",
           "F.forget of a function with parameters of a converted model fails in its backward pass"),
    # old_names
    Mutant("all-boxes", "old_code/nms_gpu_post.py", "old_code/test_old_code.py",
           "suppressed[block:] |= rows[box, block:]", "suppressed[block:] = rows[box, block:]",
           "detectors give the same object twice"),
    Mutant("other-numpy", "old_code/numpy_names.py", "old_code/test_numpy_names.py",
           "vars(np).setdefault(name, value)", "vars(np)[name] = value", "functions of NumPy are replaced by old ones"),
    Mutant("uncast", "old_code/numpy_names.py", "old_code/test_numpy_names.py",
           "np.asarray(values).astype(dtype)", "np.asarray(values)", "np.cast casts nothing"),
    # graph_capture
    Mutant("kept-frames", "graph_capture/origin.py", "graph_capture/test_garbage.py",
           "error.__traceback__ = None", "pass", "the arrays of a failed capture wait for Python's collector"),
    Mutant("other-shape", "graph_capture/step_arguments.py", CAPTURED,
           "return array.shape, array.dtype, order", "return array.ndim, array.dtype, order",
           "the graph of a full batch runs on the last one"),
    Mutant("not-compared", "graph_capture/verification.py", CAPTURED,
           "for name, array in found.arrays.items():", "for name, array in ():", "a graph may spoil weights unseen"),
    Mutant("kept-result", "graph_capture/reports.py", "graph_capture/test_on_host.py",
           'copies[id(value)] = value.copy(order="K")', "copies[id(value)] = value", "all losses are the last one"),
    Mutant("own-hyperparameter", "optimizer/model_index.py", "graph_capture/test_holds.py",
           "and not any(map(dict.__contains__, self._own, self._own_names))", "and True",
           "a graph does not follow a hyperparameter that a rule has got itself"),
    Mutant("other-state", "optimizer/model_index.py", "graph_capture/test_holds.py",
           "and all(map(operator.is_, states, self._states))", "and True", "a graph moves states that were replaced"),
    Mutant("unjoined-capture", "distributed/exchange.py", "graph_capture/test_several_ranks.py",
           "                self.transport.join()", "                pass",
           "a capture that fails leaves a stream in it, and the next steps of that rank fail"),
    Mutant("another-step", "distributed/step_check.py", "graph_capture/test_several_ranks.py",
           "if (vote is None) != (votes[0] is None):", "if False:",
           "update() on one rank beside a captured step on another is an error that says nothing"),
    Mutant("messages-of-a-launch", "graph_capture/rank_agreement.py", "graph_capture/test_several_ranks.py",
           "return len(_KINDS) * self.graph + _KINDS.index(self.kind) + 1", "return id(self) % 2**20 + 1",
           "no step of several ranks is ever captured"),
    Mutant("registered-graphs", "backends/nccl.py", "backends/test_nccl.py",
           'os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")', "pass",
           "ranks wait for ever for one whose capture fails"),
    Mutant("cleared-gradients", "graph_capture/graph_step.py", "graph_capture/test_holds.py",
           "if param._grad is not gradient or", "if False or", "a launch leaves the gradients that were there before"),
    Mutant("not-held", "backends/wgrad_stream.py", "graph_capture/test_second_stream.py",
           "append((self._streams.mark(), held))", "append((self._streams.mark(), None))",
           "memory that the second stream reads goes to others"),
    Mutant("no-fork", "backends/wgrad_stream.py", "graph_capture/test_second_stream.py",
           "self._streams.fork()", "self._streams.fork() if not self._under_way else None",
           "the second stream reads what is not there yet"),
    Mutant("summed-on-the-side", "precision/pass_scales.py", "graph_capture/test_second_stream.py",
           "if len(users[x]) == 1 and users[x][0] is not None", "if users[x][-1] is not None",
           "gradients that are added up are read before they are there"),
    Mutant("added-to-forgotten", "backends/wgrad_stream.py", "graph_capture/test_second_stream.py",
           "outer and frozenset(filter(_has_no_gradient, outer))", "outer",
           "gradients are added to those of F.forget before they are there"),
    Mutant("scale-as-gradient", "precision/scaled_loss.py", "optimizer/test_odd.py",
           "is type(loss.array) and isinstance(loss.creator_node, CrossEntropy)", "is type(loss.array)",
           "zeros in the gradient of a parameter are zeros in the loss scale"),
    # bridge
    Mutant("momentum-for-decay", "bridge/batch_norm.py", BRIDGED,
           "batch_norm(x, gamma, beta, running, eps, decay)", "batch_norm(x, gamma, beta, running, eps, 1 - decay)",
           "running statistics of plain Chainer are those of the last batch"),
    Mutant("no-eps", "bridge/batch_norm.py", BRIDGED,
           "*of_channels, eps)", "*of_channels, 0.0)", "eps is left out"),
    Mutant("padded-average", "bridge/pooling_activation.py", BRIDGED,
           '"average_without_padding"', '"average"', "averages at the border count padding"),
    Mutant("not-written", "bridge/calls.py", BRIDGED,
           "if not fits:", "if not fits and dtype is None:", "running statistics in float16 never move"),
    Mutant("unchecked-hyperparameters", "optimizer/rules/own_rules.py", "test_arguments.py",
           "value = self.checked(value)", "pass", "a momentum of 2 is taken, and training diverges"),
    Mutant("a-switch-left-out", "optimizer/rules/formulas.py", "optimizer/batch/test_batched.py",
           "bool(getattr(rule.hyperparam, name)) for name in switches", "False for name in switches",
           "Adam runs where AMSGrad was asked for"),
    Mutant("lion-by-the-old-average", "optimizer/rules/lion.py", "optimizer/batch/test_lion.py",
           "direction += grad * (1.0 - hp.beta1)", "direction += grad * (1.0 - hp.beta2)",
           "steps take hardly any notice of the gradient"),
    Mutant("decay-of-sgdw", "optimizer/rules/sgdw.py", "optimizer/batch/test_sgdw.py",
           'keep="1.0 - lr * weight_decay"', 'keep="1.0 - weight_decay"', "decay takes no notice of a schedule"),
    Mutant("nesterov-of-sgdw", "optimizer/rules/sgdw.py", "optimizer/batch/test_kernels.py",
           "(grad + momentum * v)", "(grad + v)", "a step on a device looks too far ahead"),
    Mutant("share-of-a-step", "optimizer/rules/schedule_free.py", "optimizer/batch/test_schedule_free.py",
           '_WEIGHT = "pow(max(lr, largest), 2)"', '_WEIGHT = "pow(lr, 2)"', "late steps hardly count after a decay"),
    Mutant("rate-of-y", "optimizer/rules/schedule_free.py", "optimizer/batch/test_schedule_free.py",
           "(momentum * (1.0 - {_SHARE}) - 1.0)", "(momentum - 1.0)", "the model drifts away from its average"),
    Mutant("average-of-y-and-z", "optimizer/rules/schedule_free.py", "optimizer/batch/test_schedule_free.py",
           "(1 - 1 / self.hyperparam.momentum)", "(1 - self.hyperparam.momentum)", "other weights are evaluated"),
    Mutant("skipped-steps-carry", "optimizer/batch/kernels/update.cu", "optimizer/batch/test_schedule_free.py",
           "e < entries && !skips;", "e < entries;", "steps that are skipped on a device weigh in the average"),
    Mutant("first-pattern", "optimizer/part_rates.py", "optimizer/test_part_rates.py",
           "fitting[-1] if fitting", "fitting[0] if fitting", "a special rate is overruled by the general one"),
    Mutant("frozen-without-saving", "optimizer/part_rates.py", "optimizer/test_part_rates.py",
           "param._requires_grad = param.node._requires_grad = not frozen", "param._requires_grad = not frozen",
           "backward passes of frozen layers are run"),
    Mutant("frozen-and-updated", "optimizer/part_rates.py", "optimizer/test_part_rates.py",
           "rule.enabled = False", "rule.enabled = True", "weight decay shrinks frozen parameters"),
    Mutant("state-of-frozen", "optimizer/rule_states.py", "optimizer/test_part_rates.py",
           "rule._state = None", "pass", "a snapshot makes a state for each frozen parameter, which stays in memory"),
    Mutant("weights-stay-averaged", "optimizer/batch/saved_arrays.py", "optimizer/batch/test_schedule_free.py",
           "for array, value in before:", "for array, value in before[:1]:", "FP16 weights stay averages"),
    # compat
    Mutant("float64-update", "compat/scalars.py", "compat/test_scalars.py",
           "object.__setattr__(self, name, _python_scalar(value))", "object.__setattr__(self, name, value)",
           "a schedule makes updates run in float64"),
    Mutant("hinge-dtype", "compat/losses.py", "compat/test_losses.py",
           'None if y is None else y.astype("float16")', "None if y is None else y", "a float16 loss is float32"),
    Mutant("msvag-power", "compat/defects.py", "compat/test_defects.py",
           "** (self.t + 1)", "** self.t", "MSVAG goes on from Chainer's snapshots with other steps"),
    Mutant("lost-mean", "compat/multi_node.py", "compat/test_multi_node.py",
           "if mean is not recvbuf:", "if False:", "each process trains its filters for itself"),
    Mutant("half-sum", "compat/multi_node.py", "compat/test_multi_node.py",
           'array.dtype.name in ("float16", "bfloat16")', 'array.dtype.name in ("bfloat16",)',
           "the mean of large float16 gradients is inf with ChainerMN"),
    Mutant("two-means", "compat/multi_node.py", "optimizer/test_in_chainer.py",
           'if getattr(actual_optimizer, "communicator", None) is not None:', "if False:",
           "gradients are averaged twice"),
    Mutant("waiting-processes", "compat/parallel_updaters.py", "compat/test_parallel_updaters.py",
           'if hasattr(optimizer, "scales_dynamically"):', "if False:", "processes on GPUs wait for ever"),
    Mutant("unscaled-zeros", "precision/grad_scales.py", "compat/test_multi_node_optimizer.py",
           "NOT_REACHED if factor is None else factor", "NOT_REACHED",
           "a branch that one process uses is updated by 65,536 times its gradient on the others"),
    Mutant("silent-plain", "precision/without_masters.py", "optimizer/test_without_masters.py",
           "if found:", "if False:", "nobody hears that FP16 weights are updated without masters"),
]
# fmt: on


def pytest_load_initial_conftests():
    """Spares property tests the search for a smaller example: that one fails is enough. This file is their plugin."""
    phases = [phase for phase in hypothesis.Phase if phase not in (hypothesis.Phase.shrink, hypothesis.Phase.explain)]
    hypothesis.settings.register_profile("mutants", phases=phases, database=None)
    hypothesis.settings.load_profile("mutants")


class Tree:
    """A copy of the tree in which faults are planted, in a folder that is gone at the end of the block."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-")
        self.root = pathlib.Path(self._folder.name)
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, self.root / name, follow_symlinks=False)
        if (ROOT / KERNELS).is_dir():  # g++ has compiled these; those of mutants go with the copy
            shutil.copytree(ROOT / KERNELS, self.root / KERNELS)
        for library in (ROOT / NATIVE).glob("*.so"):  # which git does not have
            shutil.copy2(library, self.root / NATIVE)
        self._times = itertools.count(1)
        return self

    def __exit__(self, *error):
        self._folder.cleanup()

    def write(self, path, text):
        """Writes a file, with a time of its own: Python takes bytecode for that of a file of its time and size."""
        (self.root / path).write_text(text)
        os.utime(self.root / path, (next(self._times),) * 2)

    def failing(self, tests):
        """Runs the core of some tests up to the first that fails.

        Args:
            tests: list of files and folders, relative to the tree, or ids of tests.

        Returns:
            The id of that test, or ``None``.

        Raises:
            RuntimeError: pytest has not run tests: a file cannot be imported, or there is none.
        """
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants", *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        return found[1] if found else None


def run(mutant, tree, whole):
    """Returns the id of the first test that kills a mutant, or ``None``.

    Args:
        mutant: :class:`Mutant`.
        tree: :class:`Tree`.
        whole: whether to run all of the core if the mutant survives its own tests.
    """
    text = (ROOT / mutant.path).read_text()
    tree.write(mutant.path, mutant.planted(text))
    try:
        # One after the other: pytest would put a folder's tests in its own order, whatever comes first.
        found = map(tree.failing, [*([f"tests/{name}"] for name in mutant.tests.split()), *([["tests"]] * whole)])
        return next(filter(None, found), None)
    finally:
        tree.write(mutant.path, text)


def main(arguments=None):
    """Runs mutants, prints a line for each and a table by package; returns the exit status."""
    parser = argparse.ArgumentParser(description="Plants faults and runs the core of the tests.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; default: all")
    parser.add_argument("--package", help="only the mutants of this package")
    parser.add_argument("--whole", action="store_true", help="run all of the core on mutants that survive their tests")
    given = parser.parse_args(arguments)
    wanted = [each for each in MUTANTS if given.package in (None, each.package)]
    wanted = [each for each in wanted if not given.names or each.name in given.names]
    if not wanted or set(given.names) - {each.name for each in wanted}:
        parser.error("no such mutants")
    killers, counts = {}, collections.defaultdict(lambda: [0, 0, 0.0])
    with Tree() as tree:
        for mutant in wanted:
            start = time.monotonic()
            killer = run(mutant, tree, given.whole)
            seconds = time.monotonic() - start
            said = f"killed by {killer}" if killer else f"{SURVIVED}: {mutant.harm};"
            print(f"{mutant.package}/{mutant.name}: {said} in {seconds:.0f} s", flush=True)
            killers |= {killer: mutant} if killer else {}
            row = counts[mutant.package]
            row[:] = row[0] + 1, row[1] + bool(killer), row[2] + seconds
        innocent = tree.failing(list(killers)) if killers else None
    print(f"\n{'package':<14}{'mutants':>8}{'killed':>8}{'seconds':>9}")
    for package, (mutants, killed, seconds) in counts.items():
        print(f"{package:<14}{mutants:>8}{killed:>8}{seconds:>9.0f}")
    if innocent:
        print(f"{innocent} fails without any fault, too")
    return int(bool(innocent) or any(killed < mutants for mutants, killed, _ in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
