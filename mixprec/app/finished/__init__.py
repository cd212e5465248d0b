"""What can be done with a run that has ended: evaluate it, predict with it, export it.

In the order in which to read: ``finished_run`` opens a results folder, ``validation_images`` reads images,
``predictions`` evaluates, ``classifier`` predicts, ``check`` compares exported files with the network, ``report`` and
``out_folder`` write an export, ``json_lines`` makes values fit for JSON.
"""
