// Nothing: what a launch costs by itself. (It takes an argument, as every kernel does.)
kernel void idle(global float *restrict unused) {}
