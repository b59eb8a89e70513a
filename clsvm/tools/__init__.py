"""Provide tools for users: tune a device, emit OpenCL text for programs in other languages."""
