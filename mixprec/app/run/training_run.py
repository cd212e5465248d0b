"""A run of the training command, from its arguments to a results folder.

:mod:`mixprec.app.commands.train` parses them, calls :func:`carry_out`, and prints its errors.
"""

import contextlib
import errno
import os

from chainer import serializers

from mixprec.app.parts import images, rank_states
from mixprec.app.run import needs, output, preparation, rehearsal, surroundings
from mixprec.base import files, standard_streams, working_folder
from mixprec.base.messages import one_line
from mixprec.data.data_error import DataError
from mixprec.kfac.sharing import DampingTooSmall
from mixprec.training import snapshots
from mixprec.training.divergence import SoundLosses
from mixprec.training.evaluation import Evaluator
from mixprec.training.heartbeat import Heartbeat
from mixprec.training.log_report import LOG
from mixprec.training.stopping import Stopped

# In the results folder: the plans of offloading, and the layers that K-FAC preconditions.
MEMORY, KFAC = "memory.txt", "kfac.txt"
_FULL = (errno.ENOSPC, errno.EDQUOT)  # the log and plots are written, too


class Failed(Exception):
    """Something that training needs has disappeared after its start."""


@contextlib.contextmanager
def _failing(out):
    """Surrounds training: a lost image, too small a damping, or a lack of memory or disk space is now a failure."""
    try:
        yield
    except (DataError, DampingTooSmall) as error:
        raise Failed(str(error)) from error
    except MemoryError as error:
        raise Failed(f"out of memory ({error}); --dry-run says what a run needs") from error
    except OSError as error:
        here = working_folder.path()
        if here is None and not os.path.isabs(out):
            raise Failed(f"{out}: a relative path, and the working directory is gone") from error
        name, folder = (os.path.normpath(os.path.join(here or "", each)) for each in (str(error.filename or ""), out))
        is_of_results = name.startswith(folder + os.sep)
        if error.errno not in _FULL and not is_of_results:
            raise
        raise Failed(f"{error.filename}: {error.strerror}" if error.filename else error.strerror) from error


def carry_out(arguments, networks, ranks):
    """Trains, or makes a dry run.

    Args:
        arguments: parsed arguments of the command line.
        networks: as for :func:`mixprec.app.commands.train.main`.
        ranks: from :mod:`mixprec.distributed.processes`.

    Raises:
        Failed: training had begun.
        mixprec.base.messages.OneLineError: bad input; with several ranks all get
            :class:`mixprec.distributed.processes.Refused`.
    """
    with contextlib.ExitStack() as lock:
        run = preparation.prepare(arguments, networks, ranks, lock)
        if arguments.dry_run:
            ranks.first(_dry_run, run)
        else:
            log = one_line(os.path.join(run.out, LOG))
            with standard_streams.view(f"training goes on, and its log is {log}"):
                _train(run, lock)


def _dry_run(run):
    trainer, limit, resolved = run.build(run.ranks.apart())
    described = run.describe(limit)
    estimate = needs.dry_run(run, trainer, limit)
    print("\n".join([*described, "", resolved, str(run.report), "", estimate, ""]))
    print(f"dry run: all is well; without --dry-run the results would go to {one_line(run.out)}")


def _train(run, lock):
    trainer, limit, resolved = run.build(run.ranks)
    first = trainer.updater.iteration
    run.ranks.first(_begin, run, limit, lock)
    with _failing(run.out):
        if run.ranks.is_first:
            _write_about(run, resolved)
        rehearsal.rehearse(run.config, trainer, run.train, run.val, run.ranks, limit.memory)
        try:
            with _heartbeat(trainer, run.ranks):
                trainer.run(show_loop_exception_msg=False)
                _finish(run, trainer, first, limit.memory)
        except Stopped as stopped:
            _stop(stopped, trainer, run)


def _heartbeat(trainer, ranks):
    return trainer.get_extension(Heartbeat.name).watching() if ranks.is_first else contextlib.nullcontext()


def _begin(run, limit, lock):
    """Makes and locks the results folder, and prints the description of the run."""
    needs.check_disk(run)
    if run.is_new:  # at least when this run began
        lock.enter_context(output.created(run.out))
        run.ranks.works_in(run.out)
        if output.snapshot_to_resume(run.out, run.arguments.resume) != run.snapshot:
            raise output.OutputError(f"{run.out}: another run has used it meanwhile; start again")
    print("\n".join([*run.describe(limit), f"results: {one_line(run.out)}"]), flush=True)


def _write_about(run, resolved):
    """Writes the files about a run before its first step."""
    is_resumed = run.snapshot is not None
    output.prepare(run.out, resumed=is_resumed)
    about = surroundings.report(run.ranks.described)
    for name, text in ((output.CONFIG, resolved), ("environment.txt", about), ("conversion.txt", f"{run.report}\n")):
        output.write(os.path.join(run.out, name), text, resumed=is_resumed)
    images.write_records(run.out, run.train, run.val)


def _stop(stopped, trainer, run):
    if stopped.failure is not None:
        raise stopped.failure from None
    where = f"{'in the evaluation' if stopped.in_evaluation else 'at the end'} of iteration"
    if run.ranks.is_first:
        iteration, newest = trainer.updater.iteration, one_line(snapshots.newest(run.out))
        print(f"stopped by SIGTERM {where} {iteration}; --resume auto goes on from {newest}")


def _finish(run, trainer, first, memory):
    """Writes and prints the results at the end of training; ``first`` is the iteration where this process began."""
    out, ranks = run.out, run.ranks
    weights = os.path.join(out, "model.npz")
    if ranks.is_first:
        for name, about in ((MEMORY, memory), (KFAC, run.optimizer.preconditioner)):
            if about is not None:
                files.write_text(os.path.join(out, name), about.report() + "\n")
        if run.config.capture.mode != "off":
            report, steps = os.path.join(out, "capture.txt"), trainer.updater.iteration - first
            files.write_text(report, _captured(run.config, trainer))
            replays = f"{trainer.updater.step.replays} of {steps} steps were launches of a graph"
            print(f"capture: {replays}; more in {one_line(report)}")
    with rank_states.RankStates(ranks).evaluated(trainer):
        trainer.get_extension(SoundLosses.name).check_end(trainer)
        if ranks.is_first:
            _save_weights(weights, run.optimizer)
    if not ranks.is_first:
        return
    print(f"results, log and plots: {one_line(out)}; weights in FP32 for plain Chainer: {one_line(weights)}")
    name, log = "validation/main/accuracy", trainer.get_extension("LogReport").log
    accuracies = [entry[name] for entry in log if name in entry]
    if accuracies:
        print(f"validation accuracy {accuracies[-1]:.4f}")


def _captured(config, trainer):
    text = f"training\n{trainer.updater.step.report()}\n"
    if not config.capture.evaluation or config.data.format == "synthetic":
        return text
    evaluate = trainer.get_extension(Evaluator.default_name).eval_func
    return f"{text}\nevaluation\n{evaluate.report()}\n"


def _save_weights(path, optimizer):
    """Saves the network under the names that ``load_npz`` of the plain network expects; masters are saved, in FP32."""
    with files.replacing(path) as temporary:
        serializers.save_npz(temporary, optimizer.target.predictor, compression=False)
