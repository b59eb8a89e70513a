"""Studies of machines on centres: against SVMs, what each part gains, features, rows, errors against seconds."""
