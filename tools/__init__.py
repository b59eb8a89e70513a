"""Commands for developers, run in a checkout: ``python -m tools.audit``."""
