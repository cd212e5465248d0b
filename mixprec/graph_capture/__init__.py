"""Captures repeated work as CUDA graphs: the training step, and the evaluation of a model.

In the order in which to read:

================================================================  ================================================
:mod:`~mixprec.graph_capture.captured`                            :func:`capture`, and the choice of a graph
:mod:`~mixprec.graph_capture.step_arguments`                      its key; buffers for the arguments
:mod:`~mixprec.graph_capture.link_states`                         what links keep from one call to the next
:mod:`~mixprec.graph_capture.specialization`                      eager, watched, compared and launched calls
:mod:`~mixprec.graph_capture.rank_agreement`                      how all ranks agree on one of them
:mod:`~mixprec.graph_capture.watch`, ``origin``                   compares two eager calls; finds the user's line
:mod:`~mixprec.graph_capture.verification`, ``doubts``            compares the graph with eager steps; chance
:mod:`~mixprec.graph_capture.reports`                             ``chainer.report`` in a graph
:mod:`~mixprec.graph_capture.capturable`                          the interface of work: ``graph_step``, and
                                                                  ``captured_evaluation``
:mod:`~mixprec.graph_capture.graph_table`, ``called_links``       the table that a graph reads; hooks, other links
:mod:`~mixprec.graph_capture.cuda_graphs`                         capture and launch, through CuPy
================================================================  ================================================
"""

from mixprec.backends.capture_error import CaptureError
from mixprec.graph_capture.captured import capture, capture_evaluation

__all__ = ["CaptureError", "capture", "capture_evaluation"]
