"""Commands for developers, to run in a checkout: ``python -m tools.audit``."""
