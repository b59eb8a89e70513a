// Do nothing, to time a launch.
kernel void idle(global float *restrict unused) {}
