"""Provide tools for users: describe a data set, tune a device, emit OpenCL text for programs in other languages."""
