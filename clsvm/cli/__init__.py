"""Define the command ``clsvm``, its subcommands, and the functions that the subcommands share."""
