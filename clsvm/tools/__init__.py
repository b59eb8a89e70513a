"""Provide tools for users: tune a device, and emit OpenCL text for programs in other languages."""
