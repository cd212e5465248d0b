"""Training with less memory for activations: ``mixprec.recompute`` and ``mixprec.offload``.

Recompute, in the order in which to read: ``recomputation`` (marks links), ``recomputed`` (the function node),
``repeatable_call``, ``repetition``, ``link_attributes`` and ``cupy_draws`` (an exact repetition), ``graph_edge``;
``network_blocks`` finds the links to mark. Offload: ``offloading`` (the context), ``rounds``, ``buffers`` and
``retained`` (what a step keeps), ``recording`` and ``metering`` (its measurement), ``timetable``, ``choosing``,
``planning`` and ``made_plans`` (the plan), ``following`` (carries it out), ``budget``.
"""
