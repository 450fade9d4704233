"""The command's verbs: one file each, with `add(parser)` and `run(arguments)`."""
